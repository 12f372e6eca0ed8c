"""Common base of the job handles: the last known state of a job, without I/O."""

from collections.abc import Mapping
from typing import Any

from kubealign.client.job_html import job_html
from kubealign.client.records import JobRecord, JobRef
from kubealign.spec.job import AlignmentJob
from kubealign.spec.status import AlignmentJobStatus, JobPhase


class JobHandle:
    """Job as of the last request; `refresh` updates it."""

    def __init__(self, record: JobRecord) -> None:
        self.record = record

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def namespace(self) -> str:
        return self.record.namespace

    @property
    def ref(self) -> JobRef:
        return self.record.ref

    @property
    def labels(self) -> Mapping[str, str]:
        return self.record.labels

    @property
    def phase(self) -> JobPhase | None:
        """Phase of the job; None if the job was not reconciled yet."""
        return self.record.phase

    @property
    def status(self) -> AlignmentJobStatus:
        return self.record.status

    @property
    def message(self) -> str:
        """Awaited condition or failure reason; empty if the status has no message."""
        return self.record.status.message or ""

    @property
    def step(self) -> int:
        """Last completed step."""
        return self.record.status.step or 0

    @property
    def job(self) -> AlignmentJob:
        """The submitted job, typed."""
        return self.record.job

    @property
    def resource(self) -> Mapping[str, Any]:
        """The full document, in Kubernetes form."""
        return self.record.resource

    def __repr__(self) -> str:
        status = self.record.status
        steps = f", step {status.step or 0} of {status.max_steps}" if status.max_steps else ""
        reward = f", reward {status.reward:.4g}" if status.reward is not None else ""
        return f"<{type(self).__name__} {self.ref}: {self.phase or 'not reconciled yet'}{steps}{reward}>"

    def _repr_html_(self) -> str:
        return job_html(self.record)
