"""Protocols of the backends that run jobs: a Kubernetes cluster or this machine.

Every method raises a KubealignError (see errors): JobNotFound for a job that does not exist, Forbidden and
Unauthenticated for refused requests, Unavailable when the backend does not respond.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from kubealign.client.backends.worker_groups import ROLLOUT
from kubealign.client.records import JobEvent, JobPage, JobRecord, JobRef, ListQuery, LogLine, ProcessRecord
from kubealign.human_labels import HumanLabel
from kubealign.read_model import STREAM_START, SampleRecord, StepMetrics
from kubealign.validation_record import ValidationRecord


class TelemetrySource(Protocol):
    """Source of the metrics, samples and heartbeats that jobs report."""

    async def metrics(
        self, ref: JobRef, after: str = STREAM_START, count: int = 1000
    ) -> Sequence[StepMetrics]:
        """Return the metrics of at most `count` steps after the entry `after`, in reporting order.

        A step that is repeated after a rollback is returned again, with a higher fence.
        """

    async def samples(
        self,
        ref: JobRef,
        after: str = STREAM_START,
        count: int = 100,
        *,
        step: int | None = None,
        newest: bool = False,
    ) -> Sequence[SampleRecord]:
        """Return at most `count` samples.

        Args:
            after: Only samples after this entry.
            step: Only samples of this step.
            newest: Return the last samples, newest first, instead of the first ones, oldest first.
        """

    async def validation_samples(self, ref: JobRef, step: int) -> Sequence[ValidationRecord]:
        """Return the responses to held-out prompts at a step, in a stable order; empty if none are stored."""

    async def heartbeats(self, ref: JobRef, processes: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        """Return the last heartbeat of each of these processes; silent processes are omitted."""


class JobBackend(TelemetrySource, Protocol):
    """Backend that runs jobs."""

    #: "cluster" or "local".
    kind: str
    #: Namespace of jobs that name none.
    namespace: str

    async def create(self, resource: Mapping[str, Any], *, dry_run: bool = False) -> JobRecord:
        """Submit a job, given as a full document. Raises JobExists, JobInvalid."""

    async def get(self, ref: JobRef) -> JobRecord: ...

    async def list(self, query: ListQuery) -> JobPage: ...

    async def patch(self, ref: JobRef, patch: Mapping[str, Any]) -> JobRecord:
        """Apply a JSON merge patch (RFC 7386) to a job. Raises JobInvalid, Conflict."""

    async def delete(self, ref: JobRef) -> None:
        """Delete a job and everything that it owns.

        In a cluster the job's volumes are kept; a local job's result is deleted with its run directory.
        """

    async def scale(self, ref: JobRef, replicas: int, group: str = ROLLOUT) -> JobRecord:
        """Set the number of workers of a group: rollout, environment, reward-NAME, reference, teacher or
        teacher-NAME. Raises NotPossible, JobInvalid.
        """

    async def suspend(self, ref: JobRef, suspended: bool) -> JobRecord:
        """Suspend or resume a job.

        Args:
            suspended: True to checkpoint, stop and release all resources; False to resume from the
                checkpoint.
        """

    async def retry(self, ref: JobRef) -> JobRecord:
        """Start a failed job again from its last checkpoint, with a new restart budget.

        Raises Conflict for a job that has not failed.
        """

    def watch(self, ref: JobRef) -> AsyncIterator[JobRecord]:
        """Yield the job as it is now, then after each change. Ends when the job is deleted."""

    async def processes(self, ref: JobRef) -> Sequence[ProcessRecord]:
        """Return the processes of a job, with their heartbeats where available."""

    async def pods(self, ref: JobRef) -> Sequence[Mapping[str, Any]]:
        """Return the pods of a job as Kubernetes objects; empty on one machine."""

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
        """Yield log lines of one process, of all processes of a role, or of all processes.

        Args:
            follow: Include processes that start later, until the job has finished. May be called before
                the first process exists.
            tail: Start with this many last lines of each process.
            previous: Only the lines of the last failed attempt of each process, in a cluster.

        Raises:
            NotPossible: `previous`, and no log of a failed attempt is kept, or it would be followed.
        """

    async def events(self, ref: JobRef) -> Sequence[JobEvent]:
        """Return the events of a job, oldest first."""

    async def labels(self, ref: JobRef) -> Sequence[HumanLabel]:
        """Return the labels that people gave to responses of a job, oldest first; see `current_labels`."""

    async def add_label(self, ref: JobRef, label: HumanLabel) -> None:
        """Store a label; return when it is durable. It replaces earlier ones of the same subject."""

    async def result(self, ref: JobRef, into: Path | None = None) -> Path:
        """Return a folder on this machine with the job's result, in Hugging Face layout.

        Args:
            into: Target folder if the result must be downloaded.

        Raises:
            NotPossible: The job has no result yet.
        """

    async def close(self) -> None: ...
