"""What waiting for a job makes of each of its changes. Pure."""

from kubealign.client.errors import Conflict, JobFailed, JobInvalid
from kubealign.client.records import JobRecord
from kubealign.spec.errors import SpecError
from kubealign.spec.status import JobPhase

_BEFORE_THE_END = (JobPhase.PENDING, JobPhase.STARTING, JobPhase.RUNNING)


def wanted_phase(until: str) -> JobPhase:
    """Raises JobInvalid for what is no phase."""
    try:
        return JobPhase(until)
    except ValueError:
        error = SpecError(f"must be a phase: {', '.join(JobPhase)}", "until", until)
        raise JobInvalid(str(error), [error]) from None


def reached(record: JobRecord, until: JobPhase) -> bool:
    """Whether the job is where it was waited for, or has been there. Raises JobFailed with its cause, and
    Conflict where it is over and will never be there."""
    phase = record.phase
    if phase is until:
        return True
    if phase is JobPhase.FAILED:
        raise JobFailed(f"{record.ref} has failed: {record.status.message or 'it did not say why'}")
    if phase is JobPhase.SUCCEEDED:
        if until in _BEFORE_THE_END:
            return True
        raise Conflict(f"{record.ref} has succeeded: it will never be {until}")
    return False


def still_waits(record: JobRecord | None, name: str, until: JobPhase, timeout: float) -> str:
    """What a wait that has run out of time says."""
    waited = f"waited {timeout:g} s for {name} to be {until}"
    if record is None:
        return f"{waited}: its site did not tell how it is"
    status = record.status
    steps = f" at step {status.step or 0} of {status.max_steps}" if status.max_steps else ""
    says = f"; it says: {status.message}" if status.message else ""
    return f"{waited}: it is {record.phase or 'not looked at yet'}{steps}{says}"
