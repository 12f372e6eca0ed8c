"""Detached run of one job from its run directory, without a terminal, after its dependencies have results."""

from pathlib import Path

from kubealign.local.admission import folder_of
from kubealign.local.awaiting import results_ready
from kubealign.local.display import LinesDisplay
from kubealign.local.event_log import EventLog, EventType
from kubealign.local.failure import RunFailed
from kubealign.local.interruption import Interruption
from kubealign.local.run_folder import RunFolder
from kubealign.local.run_jobs import FAILED, INTERRUPTED, check_programs, run_locked
from kubealign.local.run_status import Phase, Seen, begun, ended, read_status
from kubealign.local.spec_change import read_job


async def run_detached(runs_dir: Path, name: str, display: LinesDisplay) -> int:
    """Run the job and return the exit code of `kubealign run`.

    A job that cannot start is recorded as failed, with the cause in its status. The caller holds the job's
    lock.
    """
    folder = folder_of(runs_dir, name)
    interruption = Interruption()
    with interruption.by_signals():
        try:
            job = read_job(folder.job)
            if job is None:
                display.say(f"{folder.root} holds no job: it was deleted")
                return FAILED
            check_programs()
            if await results_ready(job, runs_dir, interruption.asked):
                # Fields that may change between runs may have been edited while the job waited.
                job = read_job(folder.job) or job
                return await run_locked([job], runs_dir, display, interruption)
            _end(folder, Phase.STOPPED, "stopped before it started")
            return INTERRUPTED
        except RunFailed as failure:
            display.say(str(failure))
            _end(folder, Phase.FAILED, str(failure))
            return FAILED


def _end(folder: RunFolder, phase: Phase, message: str) -> None:
    status = begun(read_status(folder.status))
    ended(status, phase, message, Seen()).write(folder.status)
    if phase is Phase.FAILED:
        EventLog(folder.events).tell("Failed", message, EventType.WARNING)
    else:
        EventLog(folder.events).tell("Stopped", message)
