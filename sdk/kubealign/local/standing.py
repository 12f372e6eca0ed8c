"""Phase of a local job, derived from its run directory. The decision is pure."""

from dataclasses import dataclass
from pathlib import Path

from kubealign.local.run_folder import RunFolder
from kubealign.local.run_lock import Holder
from kubealign.local.run_status import Phase, RunStatus, read_status
from kubealign.spec.status import JobPhase

_LOOKS = 5


@dataclass(frozen=True)
class Facts:
    """Facts read from a run directory.

    `status` None: no runner has started. `stop_requested_pid`: the runner that was asked to stop for a
    suspension, 0 where none ran; None: no suspension is requested.
    """

    status: RunStatus | None = None
    holder: Holder | None = None
    told: int | None = None


@dataclass(frozen=True)
class Standing:
    """A job phase with its reason in a sentence."""

    phase: JobPhase
    message: str = ""


def read_facts(folder: RunFolder) -> Facts:
    """Read the facts of a run. Raises RunRefused for an invalid status."""
    status = read_status(folder.status)
    for _ in range(_LOOKS):
        holder = folder.lock().holder()
        before, status = status, read_status(folder.status)
        # Retried, so that a runner that started or ended in between does not count as killed.
        if status == before:
            break
    return Facts(status, holder, read_told(folder.suspension))


def read_told(suspension: Path) -> int | None:
    """Read `RunFacts.stop_requested_pid`."""
    try:
        text = suspension.read_text().strip()
    except FileNotFoundError:
        return None
    return int(text) if text.isdecimal() else 0


def standing(facts: Facts) -> Standing:
    """Derive the phase. A runner that holds the lock without a status of its own is about to start the job,
    or waits.
    """
    status, holder = facts.status, facts.holder
    if status is not None and status.phase is Phase.SUCCEEDED:
        return Standing(JobPhase.SUCCEEDED)
    if holder is not None and (status is None or status.runner != holder.pid):
        return Standing(JobPhase.PENDING, "its runner is about to start it")
    if status is None:
        return Standing(JobPhase.SUSPENDED, _not_begun(facts))
    if status.phase is Phase.FAILED:
        return Standing(JobPhase.FAILED, status.message)
    if status.phase is Phase.STOPPED:
        return Standing(
            JobPhase.SUSPENDED, f"{status.message.partition(';')[0]}; resume it to continue from there"
        )
    assert status.phase is Phase.RUNNING
    if holder is None:
        return Standing(
            JobPhase.SUSPENDED,
            f"its runner (process {status.runner}) was killed; "
            "resume it to continue from the last checkpoint",
        )
    if facts.told == holder.pid:
        return Standing(JobPhase.SUSPENDING, "the driver finishes and writes a checkpoint")
    return Standing(JobPhase.RUNNING)


def _not_begun(facts: Facts) -> str:
    if facts.told is not None:
        return "suspended before it started; resume it to start it"
    return "its runner ended before the job started, see logs/runner.log; resume it to try again"
