"""Handles of one job: `Job` for the synchronous client, `AsyncJob` for the asyncio client."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kubealign.client.backends.worker_groups import ROLLOUT
from kubealign.client.job_handle import JobHandle
from kubealign.client.records import JobEvent, JobRecord, LogLine, ProcessRecord
from kubealign.read_model import SampleRecord
from kubealign.spec.status import JobPhase

if TYPE_CHECKING:
    from kubealign.client.async_client import AsyncAlignmentClient
    from kubealign.client.metrics_table import MetricsTable
    from kubealign.client.results.model_loader import Result
    from kubealign.client.sync_client import AlignmentClient


class Job(JobHandle):
    """Handle of a job of an AlignmentClient.

    The methods are documented at the client's methods of the same names. A method that changes the job
    updates the handle.
    """

    def __init__(self, client: "AlignmentClient", record: JobRecord) -> None:
        super().__init__(record)
        self._client = client

    def refresh(self) -> "Job":
        """Fetch the present state of the job; returns the same handle."""
        return self._update_record(self._client.get(self.name, self.namespace))

    def wait(
        self,
        timeout: float | None = None,
        on_change: "Callable[[Job], object] | None" = None,
        until: str = JobPhase.SUCCEEDED,
    ) -> "Job":
        return self._update_record(self._client.wait(self.name, timeout, on_change, until, self.namespace))

    def logs(
        self,
        role: str | None = None,
        process: str | None = None,
        follow: bool = False,
        tail: int | None = None,
        previous: bool = False,
    ) -> Iterator[LogLine]:
        return self._client.logs(self.name, role, process, follow, tail, self.namespace, previous)

    def metrics(self) -> "MetricsTable":
        return self._client.metrics(self.name, self.namespace)

    def samples(self, step: int | None = None, count: int = 8) -> Sequence[SampleRecord]:
        return self._client.samples(self.name, step, count, self.namespace)

    def events(self) -> Sequence[JobEvent]:
        return self._client.events(self.name, self.namespace)

    def processes(self) -> Sequence[ProcessRecord]:
        return self._client.processes(self.name, self.namespace)

    def scale(self, replicas: int, *, group: str = ROLLOUT) -> "Job":
        return self._update_record(self._client.scale(self.name, replicas, self.namespace, group=group))

    def suspend(self) -> "Job":
        return self._update_record(self._client.suspend(self.name, self.namespace))

    def resume(self) -> "Job":
        return self._update_record(self._client.resume(self.name, self.namespace))

    def retry(self) -> "Job":
        return self._update_record(self._client.retry(self.name, self.namespace))

    def delete(self) -> None:
        self._client.delete(self.name, self.namespace)

    def result(self, into: Path | str | None = None) -> Path:
        return self._client.result(self.name, into, self.namespace)

    def load_result(self, into: Path | str | None = None, **arguments: Any) -> "Result":
        return self._client.load_result(self.name, into, self.namespace, **arguments)

    def _update_record(self, job: "Job") -> "Job":
        self.record = job.record
        return self


class AsyncJob(JobHandle):
    """Handle of a job of an AsyncAlignmentClient.

    The methods are documented at the client's methods of the same names. A method that changes the job
    updates the handle.
    """

    def __init__(self, client: "AsyncAlignmentClient", record: JobRecord) -> None:
        super().__init__(record)
        self._client = client

    async def refresh(self) -> "AsyncJob":
        """Fetch the present state of the job; returns the same handle."""
        return self._update_record(await self._client.get(self.name, self.namespace))

    async def wait(
        self,
        timeout: float | None = None,
        on_change: "Callable[[AsyncJob], Awaitable[object] | object] | None" = None,
        until: str = JobPhase.SUCCEEDED,
    ) -> "AsyncJob":
        return self._update_record(
            await self._client.wait(self.name, timeout, on_change, until, self.namespace)
        )

    def logs(
        self,
        role: str | None = None,
        process: str | None = None,
        follow: bool = False,
        tail: int | None = None,
        previous: bool = False,
    ) -> AsyncIterator[LogLine]:
        return self._client.logs(self.name, role, process, follow, tail, self.namespace, previous)

    async def metrics(self) -> "MetricsTable":
        return await self._client.metrics(self.name, self.namespace)

    async def samples(self, step: int | None = None, count: int = 8) -> Sequence[SampleRecord]:
        return await self._client.samples(self.name, step, count, self.namespace)

    async def events(self) -> Sequence[JobEvent]:
        return await self._client.events(self.name, self.namespace)

    async def processes(self) -> Sequence[ProcessRecord]:
        return await self._client.processes(self.name, self.namespace)

    async def scale(self, replicas: int, *, group: str = ROLLOUT) -> "AsyncJob":
        return self._update_record(await self._client.scale(self.name, replicas, self.namespace, group=group))

    async def suspend(self) -> "AsyncJob":
        return self._update_record(await self._client.suspend(self.name, self.namespace))

    async def resume(self) -> "AsyncJob":
        return self._update_record(await self._client.resume(self.name, self.namespace))

    async def retry(self) -> "AsyncJob":
        return self._update_record(await self._client.retry(self.name, self.namespace))

    async def delete(self) -> None:
        await self._client.delete(self.name, self.namespace)

    async def result(self, into: Path | str | None = None) -> Path:
        return await self._client.result(self.name, into, self.namespace)

    async def load_result(self, into: Path | str | None = None, **arguments: Any) -> "Result":
        return await self._client.load_result(self.name, into, self.namespace, **arguments)

    def _update_record(self, job: "AsyncJob") -> "AsyncJob":
        self.record = job.record
        return self
