"""Decides which jobs can be retried. Pure."""

from kubealign.client.records import JobRef
from kubealign.spec.status import JobPhase


def not_retryable_message(ref: JobRef, phase: JobPhase | None) -> str:
    """Return the error of a retry of a job that has not failed."""
    remedy = ""
    if phase is JobPhase.SUCCEEDED:
        remedy = ". To train on from its result, submit another job with spec.checkpoint.from"
    elif phase in (JobPhase.SUSPENDING, JobPhase.SUSPENDED):
        remedy = f". Continue it with: kubealign resume {ref.name}"
    return f"{ref} is {phase or 'new'}: only a job that has failed can be retried{remedy}"
