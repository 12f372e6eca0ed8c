"""The cluster as a caller of the dashboard acts on it: with their own token, and read again at once."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from kubealign.client.cluster_site import ClusterSite
from kubealign.client.kubernetes_api import KubernetesApi
from kubealign.client.records import JobRecord, JobRef
from kubealign.client.site import Figures
from kubealign_services.dashboard.cluster.cache import JobCache

# A watch tells within milliseconds; while it is broken, nobody waits for it longer than this.
_TOLD_SECONDS = 2.0


class CallersSite(ClusterSite):
    """What the API server answers to a change is remembered before the watch tells of it: whoever reads after
    they have written finds what they wrote."""

    def __init__(self, api: KubernetesApi, figures: Figures, namespace: str, cache: JobCache) -> None:
        super().__init__(api, figures, namespace)
        self._cache = cache

    async def create(self, resource: Mapping[str, Any], *, dry_run: bool = False) -> JobRecord:
        made = await super().create(resource, dry_run=dry_run)
        return made if dry_run else self._remembered(made)

    async def patch(self, ref: JobRef, patch: Mapping[str, Any]) -> JobRecord:
        return self._remembered(await super().patch(ref, patch))

    async def scale(self, ref: JobRef, replicas: int) -> JobRecord:
        return self._remembered(await super().scale(ref, replicas))

    async def delete(self, ref: JobRef) -> None:
        await super().delete(ref)
        with suppress(TimeoutError):
            async with asyncio.timeout(_TOLD_SECONDS):
                async for _ in self._cache.watch(ref):
                    continue

    def _remembered(self, record: JobRecord) -> JobRecord:
        self._cache.answered(dict(record.resource))
        return record
