"""`kubealign run`: runs the jobs of a file on this machine, one after the other."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path

from kubealign.library_environment import library_environment
from kubealign.local.display.terminal import LinesDisplay
from kubealign.local.processes.cpu import computes_in_turns
from kubealign.local.processes.fork_server import ForkServer
from kubealign.local.processes.preload_modules import modules_to_preload
from kubealign.local.run_dir.status import Phase
from kubealign.local.runner.admission import AdmittedJob, admit, parent_run, result_folders, run_directory
from kubealign.local.runner.job_runner import JobRunner, RunOptions
from kubealign.local.runner.signals import Interruption
from kubealign.local.servers.nats import find_nats_program
from kubealign.local.servers.redis import find_redis_program
from kubealign.replay.plan import processes_for_run
from kubealign.roles import Process
from kubealign.spec.job import AlignmentJob

FAILED = 1
INTERRUPTED = 130


async def run_jobs(
    jobs: Sequence[AlignmentJob],
    runs_dir: Path,
    fresh: bool,
    display: LinesDisplay,
    processes: Callable[[AlignmentJob], Sequence[Process]] | None = None,
    preload: Callable[[Sequence[AlignmentJob]], Sequence[str]] = modules_to_preload,
    background: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> int:
    """Run the jobs and return the exit code: 0, 1 when a job failed, 130 after Ctrl-C.

    Args:
        runs_dir: Absolute path.
        processes: Processes of a job (None: those of its run directory).
        preload: Modules that the fork server imports for these jobs.
        background: Context that is open during the runs.

    Raises RunRefused before anything is started, and OSError where the run directory cannot be written.
    """
    check_server_programs()
    interruption = Interruption()
    with _lock_all(jobs, runs_dir), interruption.handle_signals():
        if fresh:
            for job in jobs:
                run_directory(runs_dir, job.name).delete()
        for job in jobs:
            # Starting a job explicitly ends its suspension.
            run_directory(runs_dir, job.name).suspension_file.unlink(missing_ok=True)
        return await run_locked_jobs(jobs, runs_dir, display, interruption, processes, preload, background)


async def run_locked_jobs(
    jobs: Sequence[AlignmentJob],
    runs_dir: Path,
    display: LinesDisplay,
    interruption: Interruption,
    processes: Callable[[AlignmentJob], Sequence[Process]] | None = None,
    preload: Callable[[Sequence[AlignmentJob]], Sequence[str]] = modules_to_preload,
    background: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> int:
    """Run jobs as `run_jobs`; the caller holds their locks and has called `check_server_programs`."""
    admitted = [admit(job, run_directory(runs_dir, job.name)) for job in jobs]
    waiting = [entry for entry in admitted if not _is_finished(entry, display)]
    if not waiting:
        return 0
    preloaded = preload([entry.job for entry in waiting])
    libraries = library_environment(exclusive_cores=all(computes_in_turns(entry.job) for entry in waiting))
    with background():
        async with ForkServer(preloaded, runs_dir / "fork-server.log", libraries) as fork_server:
            for entry in waiting:
                options = RunOptions(
                    results=result_folders(entry.job, runs_dir),
                    parent_run=parent_run(entry.job, entry.folder, runs_dir),
                    processes=processes_for_run(entry.job, entry.folder.root)
                    if processes is None
                    else processes(entry.job),
                )
                run = JobRunner(entry.job, entry.folder, fork_server, display, options)
                status = await run.run(interruption)
                if interruption.stop_requested.is_set() and status.phase is not Phase.FAILED:
                    return INTERRUPTED
                if status.phase is not Phase.SUCCEEDED:
                    return FAILED
    return 0


def check_server_programs() -> None:
    """Raise RunRefused where a server that every job needs is not installed."""
    find_nats_program()
    find_redis_program()


def _is_finished(entry: AdmittedJob, display: LinesDisplay) -> bool:
    if entry.is_finished:
        display.show_message(f"{entry.job.name}: finished before, result at {entry.folder.result}")
    return entry.is_finished


@contextmanager
def _lock_all(jobs: Sequence[AlignmentJob], runs_dir: Path) -> Iterator[None]:
    """Hold the locks of all jobs while the context is open. Raises RunRefused."""
    with ExitStack() as locks:
        for job in jobs:
            lock = run_directory(runs_dir, job.name).lock()
            lock.acquire()
            locks.callback(lock.release)
        yield
