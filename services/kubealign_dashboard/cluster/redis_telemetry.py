"""Metrics, samples and heartbeats of jobs from the platform's Redis, over one connection pool."""

from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from kubealign.access.redis_names import job_prefix
from kubealign.client.records import JobRef
from kubealign.errors import MetricsUnreadable, Unavailable
from kubealign.process_settings import RedisAccess
from kubealign.read_model import (
    STREAM_START,
    JobProgress,
    ReadModelClient,
    ReadModelUnavailable,
    ReadModelUnreadable,
    SampleRecord,
    StepMetrics,
)
from kubealign.validation_record import ValidationRecord, parse_validation_record

Result = TypeVar("Result")

# A step has a few hundred metrics, some 10 KiB. A job that stores more has no summary.
_MAX_SUMMARY_BYTES = 256 * 2**10
_DRIVER = "driver"


@dataclass(frozen=True)
class JobSummary:
    """Newest telemetry of a job. `None` and an empty heartbeat: nothing was stored."""

    progress: JobProgress | None = None
    step: StepMetrics | None = None
    driver: Mapping[str, Any] = field(default_factory=dict)


class RedisTelemetry:
    """Reads metrics from Redis.

    Every method raises Unavailable while Redis is unavailable, and MetricsUnreadable for a job that has
    stored what cannot be read.
    """

    def __init__(self, access: RedisAccess, cluster_id: str = "") -> None:
        self._model = ReadModelClient(access)
        self._summary_model = ReadModelClient(access, _MAX_SUMMARY_BYTES)
        self._cluster_id = cluster_id

    async def close(self) -> None:
        await self._model.__aexit__(None, None, None)
        await self._summary_model.__aexit__(None, None, None)

    async def metrics(
        self, ref: JobRef, after: str = STREAM_START, count: int = 1000
    ) -> Sequence[StepMetrics]:
        return await _translate_errors(self._job_model(ref).metrics(after, count))

    async def samples(
        self,
        ref: JobRef,
        after: str = STREAM_START,
        count: int = 100,
        *,
        step: int | None = None,
        newest: bool = False,
    ) -> Sequence[SampleRecord]:
        return await _translate_errors(self._job_model(ref).samples(after, count, step=step, newest=newest))

    async def validation_samples(self, ref: JobRef, step: int) -> Sequence[ValidationRecord]:
        documents = await _translate_errors(self._job_model(ref).validation_documents(step))
        return [parse_validation_record(document) for document in documents]

    async def heartbeats(self, ref: JobRef, processes: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        return await _translate_errors(self._job_model(ref).heartbeats(processes))

    async def summary(self, ref: JobRef) -> JobSummary:
        """Return the newest telemetry of a job, in few small replies."""
        model = self._summary_model.with_prefix(self._prefix(ref))
        heartbeats = await _translate_errors(model.heartbeats([_DRIVER]))
        return JobSummary(
            await _translate_errors(model.progress()),
            await _translate_errors(model.newest_metrics()),
            heartbeats.get(_DRIVER, {}),
        )

    def _job_model(self, ref: JobRef) -> ReadModelClient:
        return self._model.with_prefix(self._prefix(ref))

    def _prefix(self, ref: JobRef) -> str:
        return job_prefix(ref.namespace, ref.name, self._cluster_id)


class NoTelemetry:
    """The metrics of a platform without Redis: none."""

    async def close(self) -> None:
        return

    async def metrics(
        self, ref: JobRef, after: str = STREAM_START, count: int = 1000
    ) -> Sequence[StepMetrics]:
        return ()

    async def samples(
        self,
        ref: JobRef,
        after: str = STREAM_START,
        count: int = 100,
        *,
        step: int | None = None,
        newest: bool = False,
    ) -> Sequence[SampleRecord]:
        return ()

    async def validation_samples(self, ref: JobRef, step: int) -> Sequence[ValidationRecord]:
        return ()

    async def heartbeats(self, ref: JobRef, processes: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        return {}

    async def summary(self, ref: JobRef) -> JobSummary:
        return JobSummary()


async def _translate_errors(call: Awaitable[Result]) -> Result:
    try:
        return await call
    except ReadModelUnreadable as error:
        raise MetricsUnreadable(f"the job's metrics cannot be read: {error}") from error
    except ReadModelUnavailable as error:
        raise Unavailable(
            f"the platform's Redis is unavailable, and the job's metrics with it: {error}"
        ) from error
