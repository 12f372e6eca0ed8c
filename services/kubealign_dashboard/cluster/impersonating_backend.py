"""The cluster with the rights of a caller of the dashboard, with read-your-writes consistency."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from kubealign.client.backends.base import TelemetrySource
from kubealign.client.backends.cluster.backend import ClusterBackend
from kubealign.client.records import JobRecord, JobRef
from kubealign.kube.api import KubernetesApi
from kubealign_dashboard.cluster.job_cache import JobCache

# A watch delivers within milliseconds; this is the longest wait while it is broken.
_DELETE_WAIT_SECONDS = 2.0


class ImpersonatingBackend(ClusterBackend):
    """A backend that stores the answers of writes in the cache, so that a caller reads its own writes before
    the watch delivers them.
    """

    def __init__(self, api: KubernetesApi, figures: TelemetrySource, namespace: str, cache: JobCache) -> None:
        super().__init__(api, figures, namespace)
        self._cache = cache

    async def create(self, resource: Mapping[str, Any], *, dry_run: bool = False) -> JobRecord:
        created = await super().create(resource, dry_run=dry_run)
        return created if dry_run else self._cache_write(created)

    async def patch(self, ref: JobRef, patch: Mapping[str, Any]) -> JobRecord:
        return self._cache_write(await super().patch(ref, patch))

    async def scale(self, ref: JobRef, replicas: int) -> JobRecord:
        return self._cache_write(await super().scale(ref, replicas))

    async def delete(self, ref: JobRef) -> None:
        await super().delete(ref)
        with suppress(TimeoutError):
            async with asyncio.timeout(_DELETE_WAIT_SECONDS):
                async for _ in self._cache.watch(ref):
                    continue

    def _cache_write(self, record: JobRecord) -> JobRecord:
        self._cache.record_write(dict(record.resource))
        return record
