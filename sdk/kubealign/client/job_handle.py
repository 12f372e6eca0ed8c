"""Common base of the job handles: the last known state of a job, and its HTML. No I/O."""

from collections.abc import Mapping
from html import escape
from typing import Any

from kubealign.client.records import JobRecord, JobRef
from kubealign.spec.job import AlignmentJob
from kubealign.spec.status import AlignmentJobStatus, JobPhase

_PHASE_COLOURS = {
    JobPhase.SUCCEEDED: "#1a7f37",
    JobPhase.FAILED: "#cf222e",
    JobPhase.RUNNING: "#0969da",
    JobPhase.STARTING: "#0969da",
}
_DEFAULT_COLOUR = "#6e7781"


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


def job_html(record: JobRecord) -> str:
    """Return phase, step progress bar, reward, message and roles as HTML."""
    status = record.status
    phase = str(record.phase or "not reconciled yet")
    colour = (
        _PHASE_COLOURS.get(record.phase, _DEFAULT_COLOUR) if record.phase is not None else _DEFAULT_COLOUR
    )
    parts = [
        f"<div><b>{escape(record.name)}</b> <span>{escape(record.namespace)}</span> "
        f"<span style='color:#fff;background:{colour};border-radius:4px;padding:1px 6px'>"
        f"{escape(phase)}</span> "
        f"<span>{escape(record.algorithm)}</span></div>"
    ]
    if status.max_steps:
        parts.append(_progress_bar(status.step or 0, status.max_steps, colour))
    metrics = [("reward", status.reward), ("KL", status.kl), ("weights", status.weight_version)]
    texts = [f"{name} {value:.4g}" for name, value in metrics if value is not None]
    if texts:
        parts.append(f"<div>{escape(' · '.join(texts))}</div>")
    if status.message:
        parts.append(f"<div style='white-space:pre-wrap'>{escape(status.message)}</div>")
    if status.roles:
        roles = ", ".join(f"{role.name} {role.ready}/{role.replicas}" for role in status.roles)
        parts.append(f"<div>{escape(roles)}</div>")
    return f"<div style='font-family:system-ui,sans-serif;line-height:1.6'>{''.join(parts)}</div>"


def _progress_bar(step: int, max_steps: int, colour: str) -> str:
    percent = min(100.0, 100.0 * step / max_steps)
    return (
        "<div style='display:flex;align-items:center;gap:8px'>"
        f"<div role='progressbar' aria-valuenow='{step}' aria-valuemin='0' aria-valuemax='{max_steps}' "
        "style='width:240px;height:8px;border-radius:4px;background:rgba(127,127,127,.3)'>"
        f"<div style='width:{percent:.1f}%;height:8px;border-radius:4px;background:{colour}'></div></div>"
        f"<span>step {step} of {max_steps}</span></div>"
    )
