"""Shared reads: jobs from the cache, metrics from Redis, pods with the dashboard's own rights."""

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from kubealign.client.backends.base import JobBackend, TelemetrySource
from kubealign.client.backends.worker_groups import ROLLOUT
from kubealign.client.records import JobEvent, JobPage, JobRecord, JobRef, ListQuery, LogLine, ProcessRecord
from kubealign.errors import Forbidden, JobNotFound
from kubealign.human_labels import HumanLabel
from kubealign.read_model import STREAM_START, SampleRecord, StepMetrics
from kubealign.validation_record import ValidationRecord
from kubealign_dashboard.cluster.job_cache import JobCache
from kubealign_dashboard.cluster.listing import list_page


class CacheReader:
    """A read-only backend and a ChangeSource.

    Logs, events and results require the caller's own token and are refused here.

    Args:
        cluster: The cluster with the rights of the dashboard itself.
    """

    kind = "cluster"

    def __init__(
        self, cache: JobCache, telemetry: TelemetrySource, cluster: JobBackend, namespace: str
    ) -> None:
        self.namespace = namespace
        self._cache = cache
        self._telemetry = telemetry
        self._cluster = cluster

    async def get(self, ref: JobRef) -> JobRecord:
        job = self._cache.get(ref)
        if job is None:
            raise JobNotFound(f"there is no job {ref.name} in namespace {ref.namespace}")
        return job.record

    async def list(self, query: ListQuery) -> JobPage:
        return list_page(self._cache, query)

    async def watch(self, ref: JobRef) -> AsyncIterator[JobRecord]:
        await self.get(ref)
        async for record in self._cache.watch(ref):
            yield record

    def changes(self) -> AsyncIterator[Sequence[JobRecord | JobRef]]:
        return self._cache.changes()

    async def metrics(
        self, ref: JobRef, after: str = STREAM_START, count: int = 1000
    ) -> Sequence[StepMetrics]:
        await self.get(ref)
        return await self._telemetry.metrics(ref, after, count)

    async def samples(
        self,
        ref: JobRef,
        after: str = STREAM_START,
        count: int = 100,
        *,
        step: int | None = None,
        newest: bool = False,
    ) -> Sequence[SampleRecord]:
        await self.get(ref)
        return await self._telemetry.samples(ref, after, count, step=step, newest=newest)

    async def validation_samples(self, ref: JobRef, step: int) -> Sequence[ValidationRecord]:
        await self.get(ref)
        return await self._telemetry.validation_samples(ref, step)

    async def heartbeats(self, ref: JobRef, processes: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        await self.get(ref)
        return await self._telemetry.heartbeats(ref, processes)

    async def processes(self, ref: JobRef) -> Sequence[ProcessRecord]:
        await self.get(ref)
        return await self._cluster.processes(ref)

    async def create(self, resource: Mapping[str, Any], *, dry_run: bool = False) -> JobRecord:
        _forbid()

    async def patch(self, ref: JobRef, patch: Mapping[str, Any]) -> JobRecord:
        _forbid()

    async def delete(self, ref: JobRef) -> None:
        _forbid()

    async def scale(self, ref: JobRef, replicas: int, group: str = ROLLOUT) -> JobRecord:
        _forbid()

    async def suspend(self, ref: JobRef, suspended: bool) -> JobRecord:
        _forbid()

    async def retry(self, ref: JobRef) -> JobRecord:
        _forbid()

    def logs(
        self,
        ref: JobRef,
        *,
        process: str | None = None,
        role: str | None = None,
        follow: bool = False,
        tail: int | None = None,
        previous: bool = False,
    ) -> AsyncIterator[LogLine]:
        _forbid()

    async def pods(self, ref: JobRef) -> Sequence[Mapping[str, Any]]:
        _forbid()

    async def events(self, ref: JobRef) -> Sequence[JobEvent]:
        _forbid()

    async def labels(self, ref: JobRef) -> Sequence[HumanLabel]:
        _forbid()

    async def add_label(self, ref: JobRef, label: HumanLabel) -> None:
        _forbid()

    async def result(self, ref: JobRef, into: Path | None = None) -> Path:
        _forbid()

    async def close(self) -> None:
        await self._cluster.close()


def _forbid() -> NoReturn:
    raise Forbidden("the dashboard's own account may not do this: it requires the caller's own rights")
