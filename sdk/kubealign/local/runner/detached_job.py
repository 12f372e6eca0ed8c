"""Detached run of one job from its run directory, without a terminal, after its dependencies have results."""

from pathlib import Path

from kubealign.local.display.terminal import LinesDisplay
from kubealign.local.errors import RunFailed
from kubealign.local.run_dir.events import EventLog, RunEventType
from kubealign.local.run_dir.layout import RunDirectory
from kubealign.local.run_dir.spec_diff import read_job
from kubealign.local.run_dir.status import FinalProgress, Phase, ended_status, read_status, started_status
from kubealign.local.runner.admission import run_directory, wait_for_dependencies
from kubealign.local.runner.run_jobs import FAILED, INTERRUPTED, check_server_programs, run_locked_jobs
from kubealign.local.runner.signals import Interruption


async def run_detached(runs_dir: Path, name: str, display: LinesDisplay) -> int:
    """Run the job and return the exit code of `kubealign run`.

    A job that cannot start is recorded as failed, with the cause in its status. The caller holds the job's
    lock.
    """
    folder = run_directory(runs_dir, name)
    interruption = Interruption()
    with interruption.handle_signals():
        try:
            job = read_job(folder.job)
            if job is None:
                display.show_message(f"{folder.root} holds no job: it was deleted")
                return FAILED
            check_server_programs()
            if await wait_for_dependencies(job, runs_dir, interruption.stop_requested):
                # Fields that may change between runs may have been edited while the job waited.
                job = read_job(folder.job) or job
                return await run_locked_jobs([job], runs_dir, display, interruption)
            _record_end(folder, Phase.STOPPED, "stopped before it started")
            return INTERRUPTED
        except RunFailed as failure:
            display.show_message(str(failure))
            _record_end(folder, Phase.FAILED, str(failure))
            return FAILED


def _record_end(folder: RunDirectory, phase: Phase, message: str) -> None:
    status = started_status(read_status(folder.status))
    ended_status(status, phase, message, FinalProgress()).write(folder.status)
    if phase is Phase.FAILED:
        EventLog(folder.events).append("Failed", message, RunEventType.WARNING)
    else:
        EventLog(folder.events).append("Stopped", message)
