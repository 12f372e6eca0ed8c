"""What a run's folder says of where its job stands. Reading is apart from judging, which is pure."""

from dataclasses import dataclass
from pathlib import Path

from kubealign.local.run_folder import RunFolder
from kubealign.local.run_lock import Holder
from kubealign.local.run_status import Phase, RunStatus, read_status
from kubealign.spec.status import JobPhase

_LOOKS = 5


@dataclass(frozen=True)
class Facts:
    """`status` None: no runner has begun with it. `told`: the runner that was told to stop so that the job
    waits, 0 where none ran; None: nobody wants it to wait."""

    status: RunStatus | None = None
    holder: Holder | None = None
    told: int | None = None


@dataclass(frozen=True)
class Standing:
    """The phase, and why it is that, in a sentence."""

    phase: JobPhase
    message: str = ""


def read_facts(folder: RunFolder) -> Facts:
    """Raises RunRefused for a status that cannot be read."""
    status = read_status(folder.status)
    for _ in range(_LOOKS):
        holder = folder.lock().holder()
        before, status = status, read_status(folder.status)
        # A runner that began or ended in between is not taken for one that was killed.
        if status == before:
            break
    return Facts(status, holder, read_told(folder.suspension))


def read_told(suspension: Path) -> int | None:
    """`Facts.told`."""
    try:
        text = suspension.read_text().strip()
    except FileNotFoundError:
        return None
    return int(text) if text.isdecimal() else 0


def standing(facts: Facts) -> Standing:
    """A runner that holds the lock and has not written the status is about to start the job, or waits."""
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
            JobPhase.SUSPENDED, f"{status.message.partition(';')[0]}; resume it to go on from there"
        )
    assert status.phase is Phase.RUNNING
    if holder is None:
        return Standing(
            JobPhase.SUSPENDED,
            f"its runner (process {status.runner}) was killed; resume it to go on from the last commit",
        )
    if facts.told == holder.pid:
        return Standing(JobPhase.SUSPENDING, "the driver finishes and commits")
    return Standing(JobPhase.RUNNING)


def _not_begun(facts: Facts) -> str:
    if facts.told is not None:
        return "suspended before it began; resume it to start it"
    return "its runner ended before it began, logs/runner.log says why; resume it to try again"
