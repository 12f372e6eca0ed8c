"""Waiting for the results of the jobs that a job depends on."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

from kubealign.local.runner.admission import run_directory
from kubealign.local.errors import RunRefused
from kubealign.local.run_dir.phase import read_run_facts, derive_phase
from kubealign.spec.dependencies import dependency_names
from kubealign.spec.job import AlignmentJob
from kubealign.spec.status import JobPhase

_POLL_SECONDS = 0.5


async def wait_for_dependencies(job: AlignmentJob, runs_dir: Path, stop: asyncio.Event) -> bool:
    """Wait for the results of all dependencies.

    Returns True when all results are present, False when `stop` is set first. Raises RunRefused for a
    dependency that failed or does not exist.
    """
    while list(pending_dependencies(job, runs_dir)):
        # Other runs report their state only through files, so they are polled.
        try:
            async with asyncio.timeout(_POLL_SECONDS):
                await stop.wait()
        except TimeoutError:
            continue
        return False
    return not stop.is_set()


def pending_dependencies(job: AlignmentJob, runs_dir: Path) -> Iterator[tuple[str, JobPhase]]:
    """Yield (name, phase) of each dependency that has no result yet.

    Raises RunRefused for a dependency that failed or does not exist.
    """
    for name in sorted(dependency_names(job)):
        folder = run_directory(runs_dir, name)
        if not folder.job.exists():
            raise RunRefused(f"it needs the result of {name}, and there is no such job: submit {name} first")
        run_phase = derive_phase(read_run_facts(folder))
        if run_phase.phase is JobPhase.FAILED:
            raise RunRefused(f"it needs the result of {name}, which has failed: {run_phase.message}")
        if run_phase.phase is not JobPhase.SUCCEEDED:
            yield name, run_phase.phase
