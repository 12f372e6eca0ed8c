"""A job waits for the results of those that it builds on."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

from kubealign.local.admission import folder_of
from kubealign.local.failure import RunRefused
from kubealign.local.standing import read_facts, standing
from kubealign.spec.dependencies import dependencies
from kubealign.spec.job import AlignmentJob
from kubealign.spec.status import JobPhase

_LOOK_SECONDS = 0.5


async def results_ready(job: AlignmentJob, runs_dir: Path, stop: asyncio.Event) -> bool:
    """Return True when the results of all jobs that this one needs are there, False when `stop` is set
    first. Raises RunRefused for one that will not come."""
    while list(awaited(job, runs_dir)):
        # Other runs tell what becomes of them by their files alone.
        try:
            async with asyncio.timeout(_LOOK_SECONDS):
                await stop.wait()
        except TimeoutError:
            continue
        return False
    return not stop.is_set()


def awaited(job: AlignmentJob, runs_dir: Path) -> Iterator[tuple[str, JobPhase]]:
    """(name, phase) of each job whose result is needed and not there yet. Raises RunRefused for one that will
    not come."""
    for name in sorted(dependencies(job)):
        folder = folder_of(runs_dir, name)
        if not folder.job.exists():
            raise RunRefused(f"it needs the result of {name}, and there is no such job: submit {name} first")
        stands = standing(read_facts(folder))
        if stands.phase is JobPhase.FAILED:
            raise RunRefused(f"it needs the result of {name}, which has failed: {stands.message}")
        if stands.phase is not JobPhase.SUCCEEDED:
            yield name, stands.phase
