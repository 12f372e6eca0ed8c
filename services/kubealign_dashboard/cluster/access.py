"""Access in a cluster: authentication and authorization by the API server, reads from a cache, writes as the
caller.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, Self

from prometheus_client import Counter

from kubealign.client.backends.base import JobBackend, TelemetrySource
from kubealign.client.backends.cluster.backend import ClusterBackend
from kubealign.client.backends.worker_groups import ROLLOUT
from kubealign.client.records import JobRecord, JobRef
from kubealign.errors import Forbidden
from kubealign.kube.api import KubernetesApi
from kubealign.kube.reflector import Reflector, ReflectorOptions, Scope
from kubealign.kube.resources import JOBS, ApiResource
from kubealign_dashboard.access import Caller
from kubealign_dashboard.cluster.access_reviews import AccessReviews
from kubealign_dashboard.cluster.job_cache import JobCache
from kubealign_dashboard.cluster.reader import CacheReader
from kubealign_dashboard.cluster.redis_telemetry import NoTelemetry, RedisTelemetry
from kubealign_dashboard.cluster.token_reviews import ClusterCaller, TokenReviews

# A watch delivers within milliseconds; this is the longest wait while it is broken.
_DELETE_WAIT_SECONDS = 2.0
_WRITE_VERBS = ("create", "update", "patch", "delete")
# Concurrent access reviews of one listing of namespaces.
_MAX_CONCURRENT_REVIEWS = 32
_DEFAULT_NAMESPACE = "default"
_REFLECTOR_OPTIONS = ReflectorOptions(resync_seconds=1800.0, page_size=200)
_SERVICE_ACCOUNT_PREFIX = "system:serviceaccount:"


class ClusterAccess:
    """Implements Access. An async context manager that watches the API server while it is open.

    Args:
        api: Acts as the dashboard's own service account; closed with this object.
        telemetry: Reads the platform's Redis; closed with this object.
        namespaces: Namespaces whose jobs are shown; empty: all.
    """

    # It would be in the log of every proxy.
    accepts_token_in_url = False

    def __init__(
        self,
        api: KubernetesApi,
        telemetry: RedisTelemetry | NoTelemetry,
        namespaces: Sequence[str] = (),
        *,
        read_only: bool = False,
    ) -> None:
        self.read_only = read_only
        self.cache = JobCache()
        self.unreadable_objects = Counter(
            "kubealign_dashboard_unreadable_objects",
            "Objects of lists and watches that were not readable, by resource.",
            ("resource",),
            registry=None,
        )
        self._api = api
        self._telemetry = telemetry
        self._namespaces = tuple(namespaces)
        self._namespace = self._namespaces[0] if self._namespaces else _DEFAULT_NAMESPACE
        self._tokens = TokenReviews(api)
        self._rights = AccessReviews(api)
        options = replace(_REFLECTOR_OPTIONS, on_unreadable=self._count_unreadable)
        self._reflectors = [
            Reflector(api, Scope(JOBS, name), self.cache, options) for name in self._namespaces or (None,)
        ]
        self.reader: JobBackend = CacheReader(
            self.cache, telemetry, ClusterBackend(api, telemetry, self._namespace), self._namespace
        )
        self._open = AsyncExitStack()
        self._running: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        self._open.push_async_callback(self.reader.close)
        for reflector in self._reflectors:
            self._running.append(asyncio.create_task(reflector.run()))
        self._open.push_async_callback(_cancel_tasks, self._running)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._open.aclose()

    async def wait_for_failure(self) -> None:
        """Wait while the reflectors run. Raises the error that ended one of them."""
        if self._running:
            done, _ = await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()

    def _count_unreadable(self, resource: ApiResource) -> None:
        self.unreadable_objects.labels(resource.plural).inc()

    def not_ready_reason(self) -> str | None:
        """Return why no jobs can be shown yet; None: the initial lists are complete.

        Once they are, jobs are shown even while the API server is unavailable.
        """
        unsynced = [reflector for reflector in self._reflectors if not reflector.synced.is_set()]
        if not unsynced:
            return None
        return next(
            (waiting.last_error for waiting in unsynced if waiting.last_error), "the jobs are being listed"
        )

    def watch_error(self) -> str:
        """Return the error that prevents the dashboard from receiving changes; empty: none."""
        return next((reflector.last_error for reflector in self._reflectors if reflector.last_error), "")

    async def authenticate(self, token: str, address: str = "") -> ClusterCaller:
        return await self._tokens.authenticate(token, address)

    async def authorize(
        self,
        caller: Caller,
        verb: str,
        namespace: str | None,
        name: str = "",
        resource: str = "alignmentjobs",
    ) -> None:
        if self.read_only and verb in _WRITE_VERBS:
            raise Forbidden("this dashboard is read-only (dashboard.readOnly): use kubectl or the SDK")
        await self._rights.authorize(caller, verb, namespace, name, resource)

    async def authorize_metrics(self, caller: Caller) -> None:
        """Verify that the caller may scrape the metrics of all jobs.

        Raises:
            Forbidden: The caller may not.
            Unavailable: The right cannot be reviewed.
        """
        await self._rights.authorize_metrics(caller)

    def backend_for(self, caller: Caller) -> JobBackend:
        api = self._api.with_token(caller.token)
        return ImpersonatingBackend(api, self._telemetry, self._namespace, self.cache)

    async def namespaces(self, caller: Caller) -> Sequence[str]:
        """Return the permitted ones of: watched namespaces, namespaces with jobs, and the caller's own."""
        candidates = set(self._namespaces) or {*self.cache.namespaces(), *_own_namespace(caller)}
        if not self._namespaces and await self._rights.is_allowed(caller, "list", None):
            return sorted(candidates)
        semaphore = asyncio.Semaphore(_MAX_CONCURRENT_REVIEWS)

        async def asked(namespace: str) -> bool:
            async with semaphore:
                return await self._rights.is_allowed(caller, "list", namespace)

        ordered = sorted(candidates)
        allowed = await asyncio.gather(*map(asked, ordered))
        return [namespace for namespace, is_allowed in zip(ordered, allowed, strict=True) if is_allowed]


class ImpersonatingBackend(ClusterBackend):
    """A backend that stores the answers of writes in the cache, so that a caller reads its own writes before
    the watch delivers them.
    """

    def __init__(
        self, api: KubernetesApi, telemetry: TelemetrySource, namespace: str, cache: JobCache
    ) -> None:
        super().__init__(api, telemetry, namespace)
        self._cache = cache

    async def create(self, resource: Mapping[str, Any], *, dry_run: bool = False) -> JobRecord:
        created = await super().create(resource, dry_run=dry_run)
        return created if dry_run else self._cache_write(created)

    async def patch(self, ref: JobRef, patch: Mapping[str, Any]) -> JobRecord:
        return self._cache_write(await super().patch(ref, patch))

    async def scale(self, ref: JobRef, replicas: int, group: str = ROLLOUT) -> JobRecord:
        return self._cache_write(await super().scale(ref, replicas, group))

    async def delete(self, ref: JobRef) -> None:
        await super().delete(ref)
        with suppress(TimeoutError):
            async with asyncio.timeout(_DELETE_WAIT_SECONDS):
                async for _ in self._cache.watch(ref):
                    continue

    def _cache_write(self, record: JobRecord) -> JobRecord:
        self._cache.record_write(dict(record.resource))
        return record


def _own_namespace(caller: Caller) -> list[str]:
    """Return the namespace of a service account, which may have no job yet."""
    if not caller.name.startswith(_SERVICE_ACCOUNT_PREFIX):
        return []
    return [caller.name.removeprefix(_SERVICE_ACCOUNT_PREFIX).partition(":")[0]]


async def _cancel_tasks(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
