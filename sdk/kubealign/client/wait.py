"""Decides when a wait for a job's phase ends. Pure."""

from kubealign.client.errors import Conflict, JobFailed, JobInvalid
from kubealign.client.records import JobRecord
from kubealign.spec.errors import SpecError
from kubealign.spec.status import JobPhase

_UNFINISHED_PHASES = (JobPhase.PENDING, JobPhase.STARTING, JobPhase.RUNNING)


def parse_phase(until: str) -> JobPhase:
    """Return the JobPhase of a name. Raises JobInvalid for an unknown phase."""
    try:
        return JobPhase(until)
    except ValueError:
        error = SpecError(f"must be a phase: {', '.join(JobPhase)}", "until", until)
        raise JobInvalid(str(error), [error]) from None


def has_reached(record: JobRecord, until: JobPhase) -> bool:
    """Return True if the job is in the phase, or was in it before.

    Raises:
        JobFailed: With the job's cause.
        Conflict: The job has finished and can no longer reach the phase.
    """
    phase = record.phase
    if phase is until:
        return True
    if phase is JobPhase.FAILED:
        raise JobFailed(f"{record.ref} has failed: {record.status.message or 'no reason was reported'}")
    if phase is JobPhase.SUCCEEDED:
        if until in _UNFINISHED_PHASES:
            return True
        raise Conflict(f"{record.ref} has succeeded: it can no longer be {until}")
    return False


def timeout_message(record: JobRecord | None, name: str, until: JobPhase, timeout: float) -> str:
    """Return the message of a wait that has timed out."""
    prefix = f"waited {timeout:g} s for {name} to be {until}"
    if record is None:
        return f"{prefix}: its state could not be read"
    status = record.status
    steps = f" at step {status.step or 0} of {status.max_steps}" if status.max_steps else ""
    reported = f"; status: {status.message}" if status.message else ""
    return f"{prefix}: it is {record.phase or 'not reconciled yet'}{steps}{reported}"
