"""Copies of the job's checkpoints and result in object storage (spec.checkpoint.uri)."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from kubealign.object_storage.bucket import Bucket
from kubealign.object_storage.errors import StorageError, StorageRefused, StorageUnavailable
from kubealign.object_storage.location import StorageLocation
from kubealign.replay.plan import read_replay_plan
from kubealign.spec.job import AlignmentJob
from kubealign_services.checkpoints.fence import StaleFence
from kubealign_services.checkpoints.remote.remote_run import AddressTaken, RemoteRun
from kubealign_services.checkpoints.remote.resume import resume_run
from kubealign_services.checkpoints.remote.uploader import CheckpointUploader
from kubealign_services.checkpoints.retention_policy import RetentionPolicy
from kubealign_services.checkpoints.store import CheckpointCorrupted, CheckpointReader
from kubealign_services.roles.driver.cancellation import run_until_any
from kubealign_services.roles.driver.errors import ShutdownRequested, UnrecoverableError
from kubealign_services.roles.driver.metrics.progress import ProgressTracker
from kubealign_services.roles.driver.shutdown import ShutdownDeadline
from kubealign_services.runtime.process.context import ProcessContext
from kubealign_services.runtime.process.failures import PermanentFailure
from kubealign_services.runtime.rpc.errors import StorageFull

_FIELD = "spec.checkpoint.uri"
#: Time that the start of an attempt waits for a store that does not answer.
_CLAIM_SECONDS = 20.0

log = logging.getLogger(__name__)


def open_remote_run(job: AlignmentJob, run_dir: Path) -> RemoteRun | None:
    """Open the address of the job's copies; None: it has none, or the run is a replay.

    Raises StorageRefused where a setting of the environment is missing.
    """
    uri = job.spec.checkpoint.uri
    if uri is None or read_replay_plan(run_dir) is not None:
        return None
    return RemoteRun(Bucket(StorageLocation.parse(uri)))


async def restore_run_directory(job: AlignmentJob, run_dir: Path) -> None:
    """Check the owner of the address, and restore the newest copy if the run directory has no checkpoint.

    Raises:
        PermanentFailure: The address is another job's, the storage refuses, or no copy is intact.
        StorageFull: The storage does not answer, and the job's only checkpoints may be there.
    """
    try:
        remote = open_remote_run(job, run_dir)
        if remote is not None:
            await resume_run(remote, job, run_dir)
    except StorageUnavailable as error:
        if await asyncio.to_thread(CheckpointReader(run_dir).latest_step) is None:
            raise StorageFull(f"{_FIELD}: {error}") from error
        log.warning("the job goes on from its run directory", extra={"cause": str(error)})
    except (StorageError, AddressTaken, CheckpointCorrupted) as error:
        raise PermanentFailure(f"{_FIELD}: {error}") from error


@asynccontextmanager
async def run_uploader(
    context: ProcessContext, deadline: ShutdownDeadline
) -> AsyncIterator[CheckpointUploader | None]:
    """Run the uploader of the job while the context is open; None: the job has no copies.

    At a shutdown the newest checkpoint is uploaded as far as the grace period allows.

    Raises UnrecoverableError where a setting of the environment is missing.
    """
    job, run_dir = context.job, context.settings.run_dir
    try:
        remote = open_remote_run(job, run_dir)
    except StorageRefused as error:
        raise UnrecoverableError(f"{_FIELD}: {error}") from error
    if remote is None:
        yield None
        return
    async with CheckpointUploader(remote, run_dir, RetentionPolicy.of(job.spec.checkpoint)) as uploader:
        try:
            yield uploader
        except ShutdownRequested:
            await _upload_before_deadline(uploader, deadline)
            raise


async def begin_uploads(uploader: CheckpointUploader, fence: int) -> None:
    """Claim the fence of an attempt at the address. A store that does not answer delays only the uploads.

    Raises:
        StaleFence: Another driver has taken over the run directory.
        UnrecoverableError: The storage refuses, or another run directory has continued the job.
    """
    try:
        async with asyncio.timeout(_CLAIM_SECONDS):
            await uploader.begin_attempt(fence)
    except (StorageUnavailable, TimeoutError) as error:
        cause = str(error) or f"no answer within {_CLAIM_SECONDS:g} s"
        log.warning("checkpoints are uploaded later: the storage does not answer", extra={"cause": cause})
    except (StorageError, AddressTaken) as error:
        raise UnrecoverableError(f"{_FIELD}: {error}") from error


async def wait_until_address_taken(uploader: CheckpointUploader | None) -> None:
    """Wait until another driver has taken over the address; for ever without uploads.

    Raises:
        StaleFence: It is one of the same run directory.
        UnrecoverableError: It is one of another run directory.
    """
    if uploader is None:
        await asyncio.Event().wait()
        return
    try:
        await uploader.wait_until_replaced()
    except AddressTaken as error:
        raise UnrecoverableError(f"{_FIELD}: {error}") from error


async def publish_result(
    uploader: CheckpointUploader,
    context: ProcessContext,
    progress: ProgressTracker,
    deadline: ShutdownDeadline,
) -> None:
    """Upload the last checkpoint and the result, before the job counts as done.

    Like a wait for a full volume, the wait for a store that does not answer is limited by the job's
    `lifecycle.activeDeadlineSeconds` alone: only people can repair it.

    Raises:
        ShutdownRequested: The driver was asked to stop, and the grace period has ended.
        StorageFull: The store does not answer.
        StaleFence: Another driver has taken over the run directory.
        UnrecoverableError: The storage refuses, or another run directory has continued the job.
    """
    job, folder = context.job, context.settings.run_dir / "result"
    progress.report_wait(lambda: f"the upload of the result to {job.spec.checkpoint.uri}")

    async def upload() -> None:
        await uploader.wait_until_uploaded_or_failed()
        labels = {"job": job.name, "step": str(progress.step)}
        await uploader.publish_result(folder, progress.step, labels)

    try:
        await run_until_any(upload(), deadline.wait_for_expiry())
    except StorageUnavailable as error:
        raise StorageFull(f"{_FIELD}: the result could not be uploaded: {error}") from error
    except (StorageError, AddressTaken) as error:
        raise UnrecoverableError(f"{_FIELD}: the result could not be uploaded: {error}") from error


async def _upload_before_deadline(uploader: CheckpointUploader, deadline: ShutdownDeadline) -> None:
    if uploader.is_idle:
        return
    try:
        await run_until_any(uploader.wait_until_uploaded(), deadline.wait_for_expiry())
    except ShutdownRequested:
        log.warning("stopped before the newest checkpoint was uploaded; the next start uploads it")
    except (StaleFence, AddressTaken) as error:
        log.warning("stopped without an upload: %s", error)
