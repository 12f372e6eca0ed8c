"""The cluster's Access: tokens and rights as the API server says, reads from memory, writes as the caller."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

from kubealign.client.cluster_site import ClusterSite
from kubealign.client.errors import Forbidden
from kubealign.client.kubernetes_api import KubernetesApi
from kubealign.client.site import Site
from kubealign_services.dashboard.access import Caller
from kubealign_services.dashboard.cluster.cache import JobCache
from kubealign_services.dashboard.cluster.callers_site import CallersSite
from kubealign_services.dashboard.cluster.figures import NoFigures, RedisFigures
from kubealign_services.dashboard.cluster.reader import Reader
from kubealign_services.dashboard.cluster.reflector import Reflector
from kubealign_services.dashboard.cluster.rights import Rights
from kubealign_services.dashboard.cluster.tokens import ClusterCaller, Tokens

_CHANGES = ("create", "update", "patch", "delete")
# Reviews that one listing of namespaces has under way.
_AT_ONCE = 32
_DEFAULT_NAMESPACE = "default"
_ACCOUNTS = "system:serviceaccount:"


class ClusterAccess:
    """An Access, and an async context manager: it listens to the API server while it is open.

    `api` acts as the dashboard's own account, `figures` reads the platform's Redis; both are closed with
    this. `namespaces`: whose jobs are shown; empty: of all."""

    def __init__(
        self,
        api: KubernetesApi,
        figures: RedisFigures | NoFigures,
        namespaces: Sequence[str] = (),
        *,
        read_only: bool = False,
    ) -> None:
        self.read_only = read_only
        self.cache = JobCache()
        self._api = api
        self._figures = figures
        self._named = tuple(namespaces)
        self._namespace = self._named[0] if self._named else _DEFAULT_NAMESPACE
        self._tokens = Tokens(api)
        self._rights = Rights(api)
        self._reflectors = [Reflector(api, self.cache, name) for name in self._named or (None,)]
        self.reader: Site = Reader(
            self.cache, figures, ClusterSite(api, figures, self._namespace), self._namespace
        )
        self._open = AsyncExitStack()
        self._running: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._open.push_async_callback(self.reader.close)
        for reflector in self._reflectors:
            self._running.append(asyncio.create_task(reflector.run()))
        self._open.push_async_callback(_ended, self._running)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._open.aclose()

    async def listening(self) -> None:
        """For as long as it does. Raises what ended it, which is a fault."""
        if self._running:
            done, _ = await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()

    def missing(self) -> str | None:
        """Why nothing can be shown yet; None: all jobs are known. Once they are, they are shown also while
        the API server is away."""
        waits = [reflector for reflector in self._reflectors if not reflector.synced.is_set()]
        if not waits:
            return None
        return next((held.trouble for held in waits if held.trouble), "the jobs are being listed")

    def trouble(self) -> str:
        """What keeps the dashboard from hearing of changes; empty: nothing."""
        return next((held.trouble for held in self._reflectors if held.trouble), "")

    async def caller(self, token: str) -> ClusterCaller:
        return await self._tokens.caller(token)

    async def allow(
        self,
        caller: Caller,
        verb: str,
        namespace: str | None,
        name: str = "",
        resource: str = "alignmentjobs",
    ) -> None:
        if self.read_only and verb in _CHANGES:
            raise Forbidden("this dashboard is for reading only (dashboard.readOnly): use kubectl or the SDK")
        await self._rights.allow(caller, verb, namespace, name, resource)

    def writer(self, caller: Caller) -> Site:
        api = self._api.with_token(caller.token)
        return CallersSite(api, self._figures, self._namespace, self.cache)

    async def namespaces(self, caller: Caller) -> Sequence[str]:
        """Of those that are watched, or have jobs, or are an account's own."""
        known = set(self._named) or {*self.cache.namespaces(), *_own_namespace(caller)}
        if not self._named and await self._rights.may(caller, "list", None):
            return sorted(known)
        turn = asyncio.Semaphore(_AT_ONCE)

        async def asked(namespace: str) -> bool:
            async with turn:
                return await self._rights.may(caller, "list", namespace)

        ordered = sorted(known)
        allowed = await asyncio.gather(*map(asked, ordered))
        return [namespace for namespace, may in zip(ordered, allowed, strict=True) if may]


def _own_namespace(caller: Caller) -> list[str]:
    """Of a service account: it may have no job yet, and is where its first one will be."""
    if not caller.name.startswith(_ACCOUNTS):
        return []
    return [caller.name.removeprefix(_ACCOUNTS).partition(":")[0]]


async def _ended(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
