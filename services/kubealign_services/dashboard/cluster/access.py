"""Access in a cluster: authentication and authorization by the API server, reads from a cache, writes as the
caller.
"""

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
# Concurrent access reviews of one listing of namespaces.
_AT_ONCE = 32
_DEFAULT_NAMESPACE = "default"
_ACCOUNTS = "system:serviceaccount:"


class ClusterAccess:
    """Implements Access. An async context manager that watches the API server while it is open.

    Args:
        api: Acts as the dashboard's own service account; closed with this object.
        figures: Reads the platform's Redis; closed with this object.
        namespaces: Namespaces whose jobs are shown; empty: all.
    """

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
        """Wait while the reflectors run. Raises the error that ended one of them."""
        if self._running:
            done, _ = await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()

    def missing(self) -> str | None:
        """Return why no jobs can be shown yet; None: the initial lists are complete.

        Once they are, jobs are shown even while the API server is unavailable.
        """
        unsynced = [reflector for reflector in self._reflectors if not reflector.synced.is_set()]
        if not unsynced:
            return None
        return next((waiting.trouble for waiting in unsynced if waiting.trouble), "the jobs are being listed")

    def trouble(self) -> str:
        """Return the error that prevents the dashboard from receiving changes; empty: none."""
        return next((reflector.trouble for reflector in self._reflectors if reflector.trouble), "")

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
            raise Forbidden("this dashboard is read-only (dashboard.readOnly): use kubectl or the SDK")
        await self._rights.allow(caller, verb, namespace, name, resource)

    def writer(self, caller: Caller) -> Site:
        api = self._api.with_token(caller.token)
        return CallersSite(api, self._figures, self._namespace, self.cache)

    async def namespaces(self, caller: Caller) -> Sequence[str]:
        """Return the permitted ones of: watched namespaces, namespaces with jobs, and the caller's own."""
        candidates = set(self._named) or {*self.cache.namespaces(), *_own_namespace(caller)}
        if not self._named and await self._rights.may(caller, "list", None):
            return sorted(candidates)
        semaphore = asyncio.Semaphore(_AT_ONCE)

        async def asked(namespace: str) -> bool:
            async with semaphore:
                return await self._rights.may(caller, "list", namespace)

        ordered = sorted(candidates)
        allowed = await asyncio.gather(*map(asked, ordered))
        return [namespace for namespace, is_allowed in zip(ordered, allowed, strict=True) if is_allowed]


def _own_namespace(caller: Caller) -> list[str]:
    """Return the namespace of a service account, which may have no job yet."""
    if not caller.name.startswith(_ACCOUNTS):
        return []
    return [caller.name.removeprefix(_ACCOUNTS).partition(":")[0]]


async def _ended(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
