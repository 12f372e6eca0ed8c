"""Start of a job at its address in object storage: its owner, and the restoration of its checkpoint."""

import asyncio
import logging
from pathlib import Path

from kubealign.object_storage.errors import ObjectCorrupted, ObjectMissing
from kubealign.spec.changes.continuation import continuation_differences
from kubealign.spec.job import AlignmentJob
from kubealign_services.checkpoints.remote.remote_run import CHECKPOINTS, AddressTaken, RemoteRun
from kubealign_services.checkpoints.remote.run_files import restore_run, run_id
from kubealign_services.checkpoints.store import CheckpointCorrupted, CheckpointReader

log = logging.getLogger(__name__)


async def resume_run(remote: RemoteRun, job: AlignmentJob, run_dir: Path) -> int | None:
    """Restore the newest intact checkpoint of the job if the run directory has none.

    Return its step; None: the run directory has checkpoints of its own, or the address has none. A corrupt
    checkpoint is skipped with an error in the log that names the object.

    Raises:
        AddressTaken: The checkpoints at the address must not be continued, or overtaken, by this run.
        CheckpointCorrupted: There are checkpoints, and none is intact.
        StorageUnavailable, StorageRefused, OSError: The storage, or the volume, failed.
    """
    _check_owner(remote, await remote.read_owner(job), job)
    local_step = await asyncio.to_thread(_latest_local_step, run_dir)
    if local_step is not None:
        claim = await remote.latest_claim()
        if claim is not None and claim.run != await asyncio.to_thread(run_id, run_dir):
            raise AddressTaken(
                f"another run directory has continued the job at {remote.uri}, with fence {claim.fence}, and "
                f"{run_dir} has a checkpoint of step {local_step}: delete this run directory to go on from "
                "the address, or choose another address"
            )
        return None
    problems: list[str] = []
    for name in reversed(await remote.published(CHECKPOINTS)):
        try:
            await restore_run(remote, run_dir, name)
        except (ObjectCorrupted, ObjectMissing) as error:
            problems.append(f"{name.text} is corrupt: {error}")
            continue
        for problem in problems:
            log.error("checkpoint %s; the job goes on from %s", problem, name.text)
        log.info("restored a checkpoint", extra={"uri": remote.uri, "step": name.step})
        return name.step
    if problems:
        raise CheckpointCorrupted(
            f"no checkpoint at {remote.uri} is intact: {'; '.join(problems)}; choose another address to "
            "start again from the job's initial weights"
        )
    return None


def _check_owner(remote: RemoteRun, owner: AlignmentJob, job: AlignmentJob) -> None:
    if owner.name != job.name:
        raise AddressTaken(
            f"{remote.uri} belongs to the job {owner.name}, not to {job.name}: choose an address of its own "
            "for each job"
        )
    differences = continuation_differences(owner, job)
    if differences:
        raise AddressTaken(
            f"{remote.uri} has the checkpoints of another job {job.name}: {'; '.join(differences[:3])}. Make "
            "these fields equal, or choose another address"
        )


def _latest_local_step(run_dir: Path) -> int | None:
    return CheckpointReader(run_dir).latest_step()
