"""What a job's handle shows of it without asking again."""

from collections.abc import Mapping
from typing import Any

from kubealign.client.job_html import job_html
from kubealign.client.records import JobRecord, JobRef
from kubealign.spec.job import AlignmentJob
from kubealign.spec.status import AlignmentJobStatus, JobPhase


class JobView:
    """A job as it was when it was last asked for: `refresh` asks again."""

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
        """None: nobody has looked at it yet."""
        return self.record.phase

    @property
    def status(self) -> AlignmentJobStatus:
        return self.record.status

    @property
    def message(self) -> str:
        """What it waits for, or why it failed; empty where there is nothing to say."""
        return self.record.status.message or ""

    @property
    def step(self) -> int:
        """The last step that was done."""
        return self.record.status.step or 0

    @property
    def job(self) -> AlignmentJob:
        """What was asked for, typed."""
        return self.record.job

    @property
    def resource(self) -> Mapping[str, Any]:
        """The whole document, as Kubernetes has it."""
        return self.record.resource

    def __repr__(self) -> str:
        status = self.record.status
        steps = f", step {status.step or 0} of {status.max_steps}" if status.max_steps else ""
        reward = f", reward {status.reward:.4g}" if status.reward is not None else ""
        return f"<{type(self).__name__} {self.ref}: {self.phase or 'not looked at yet'}{steps}{reward}>"

    def _repr_html_(self) -> str:
        return job_html(self.record)
