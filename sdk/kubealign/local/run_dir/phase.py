"""Phase of a local job, derived from its run directory. The decision is pure."""

from dataclasses import dataclass
from pathlib import Path

from kubealign.local.run_dir.layout import RunDirectory
from kubealign.local.run_dir.lock import LockHolder
from kubealign.local.run_dir.status import Phase, RunStatus, read_status
from kubealign.spec.status import JobPhase

_READ_ATTEMPTS = 5


@dataclass(frozen=True)
class RunFacts:
    """Facts read from a run directory.

    `status` None: no runner has started. `stop_requested_pid`: the runner that was asked to stop for a
    suspension, 0 where none ran; None: no suspension is requested.
    """

    status: RunStatus | None = None
    holder: LockHolder | None = None
    stop_requested_pid: int | None = None


@dataclass(frozen=True)
class RunPhase:
    """A job phase with its reason in a sentence."""

    phase: JobPhase
    message: str = ""


def read_run_facts(folder: RunDirectory) -> RunFacts:
    """Read the facts of a run. Raises RunRefused for an invalid status."""
    status = read_status(folder.status)
    for _ in range(_READ_ATTEMPTS):
        holder = folder.lock().read_holder()
        before, status = status, read_status(folder.status)
        # Retried, so that a runner that started or ended in between does not count as killed.
        if status == before:
            break
    return RunFacts(status, holder, read_stop_request(folder.suspension_file))


def read_stop_request(suspension: Path) -> int | None:
    """Read `RunFacts.stop_requested_pid`."""
    try:
        text = suspension.read_text().strip()
    except FileNotFoundError:
        return None
    return int(text) if text.isdecimal() else 0


def derive_phase(facts: RunFacts) -> RunPhase:
    """Derive the phase.

    A runner that holds the lock without a status of its own is about to start the job, or waits.
    """
    status, holder = facts.status, facts.holder
    if status is not None and status.phase is Phase.SUCCEEDED:
        return RunPhase(JobPhase.SUCCEEDED)
    if holder is not None and (status is None or status.runner != holder.pid):
        return RunPhase(JobPhase.PENDING, "its runner is about to start it")
    if status is None:
        return RunPhase(JobPhase.SUSPENDED, _not_started_message(facts))
    if status.phase is Phase.FAILED:
        return RunPhase(JobPhase.FAILED, status.message)
    if status.phase is Phase.STOPPED:
        return RunPhase(
            JobPhase.SUSPENDED, f"{status.message.partition(';')[0]}; resume it to continue from there"
        )
    assert status.phase is Phase.RUNNING
    if holder is None:
        return RunPhase(
            JobPhase.SUSPENDED,
            f"its runner (process {status.runner}) was killed; "
            "resume it to continue from the last checkpoint",
        )
    if facts.stop_requested_pid == holder.pid:
        return RunPhase(JobPhase.SUSPENDING, "the driver finishes and writes a checkpoint")
    return RunPhase(JobPhase.RUNNING)


def _not_started_message(facts: RunFacts) -> str:
    if facts.stop_requested_pid is not None:
        return "suspended before it started; resume it to start it"
    return "its runner ended before the job started, see logs/runner.log; resume it to try again"
