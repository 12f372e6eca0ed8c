"""`kubealign run`: runs the jobs of a file on this machine, one after the other."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path

from kubealign.libraries import environment
from kubealign.local.admission import Admitted, admit, folder_of, results_of
from kubealign.local.display import LinesDisplay
from kubealign.local.fork_server import ForkServer
from kubealign.local.interruption import Interruption
from kubealign.local.local_run import LocalRun
from kubealign.local.nats_server import nats_program
from kubealign.local.preloading import modules
from kubealign.local.redis_server import redis_program
from kubealign.local.run_status import Phase
from kubealign.local.threads import take_turns
from kubealign.replay.plan import processes_of
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
    preload: Callable[[Sequence[AlignmentJob]], Sequence[str]] = modules,
    beside: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> int:
    """Run the jobs and return the exit code: 0, 1 when a job failed, 130 after Ctrl-C.

    Args:
        runs_dir: Absolute path.
        processes: Processes of a job (None: those of its run directory).
        preload: Modules that the fork server imports for these jobs.
        background: Context that is open during the runs.

    Raises RunRefused before anything is started, and OSError where the run directory cannot be written.
    """
    check_programs()
    interruption = Interruption()
    with _locked(jobs, runs_dir), interruption.by_signals():
        if fresh:
            for job in jobs:
                folder_of(runs_dir, job.name).delete()
        for job in jobs:
            # Starting a job explicitly ends its suspension.
            folder_of(runs_dir, job.name).suspension.unlink(missing_ok=True)
        return await run_locked(jobs, runs_dir, display, interruption, processes, preload, beside)


async def run_locked(
    jobs: Sequence[AlignmentJob],
    runs_dir: Path,
    display: LinesDisplay,
    interruption: Interruption,
    processes: Callable[[AlignmentJob], Sequence[Process]] | None = None,
    preload: Callable[[Sequence[AlignmentJob]], Sequence[str]] = modules,
    beside: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> int:
    """Run jobs as `run_jobs`; the caller holds their locks and has called `check_server_programs`."""
    admitted = [admit(job, folder_of(runs_dir, job.name)) for job in jobs]
    waiting = [entry for entry in admitted if not _finished(entry, display)]
    if not waiting:
        return 0
    preloaded = preload([entry.job for entry in waiting])
    libraries = environment(alone=all(take_turns(entry.job) for entry in waiting))
    with beside():
        async with ForkServer(preloaded, runs_dir / "fork-server.log", libraries) as fork_server:
            for entry in waiting:
                run = LocalRun(
                    entry.job,
                    entry.folder,
                    fork_server,
                    display,
                    results=results_of(entry.job, runs_dir),
                    processes=processes_of(entry.job, entry.folder.root)
                    if processes is None
                    else processes(entry.job),
                )
                status = await run.run(interruption)
                if interruption.asked.is_set() and status.phase is not Phase.FAILED:
                    return INTERRUPTED
                if status.phase is not Phase.SUCCEEDED:
                    return FAILED
    return 0


def check_programs() -> None:
    """Raise RunRefused where a server that every job needs is not installed."""
    nats_program()
    redis_program()


def _finished(entry: Admitted, display: LinesDisplay) -> bool:
    if entry.finished:
        display.say(f"{entry.job.name}: finished before, result at {entry.folder.result}")
    return entry.finished


@contextmanager
def _locked(jobs: Sequence[AlignmentJob], runs_dir: Path) -> Iterator[None]:
    """Hold the locks of all jobs while the context is open. Raises RunRefused."""
    with ExitStack() as locks:
        for job in jobs:
            lock = folder_of(runs_dir, job.name).lock()
            lock.acquire()
            locks.callback(lock.release)
        yield
