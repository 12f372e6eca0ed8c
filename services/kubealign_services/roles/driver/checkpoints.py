"""Checkpoints (shards of trainer and critic, driver state), the training history and the job's result."""

import asyncio
import logging
import threading
from pathlib import Path

from kubealign_services.checkpoints.fence import Fence
from kubealign_services.checkpoints.history import StepHistory, TrainedStep, history_path, read_history
from kubealign_services.checkpoints.lineage import Lineage
from kubealign_services.checkpoints.manifest import CheckpointManifest, ShardFile
from kubealign_services.checkpoints.remote.uploader import CheckpointUploader
from kubealign_services.checkpoints.store import CheckpointFailed, CheckpointStorageFailed, CheckpointStore
from kubealign_services.roles.driver.concurrency import run_in_thread
from kubealign_services.roles.driver.errors import UnrecoverableError, disk_error
from kubealign_services.roles.driver.state import CurriculumState, JobState
from kubealign_services.roles.driver.trainer_client import TrainerClient, TrainingClient
from kubealign_services.runtime.failpoints import Failpoint, failpoint
from kubealign_services.runtime.rpc.errors import RemoteFailure, StorageFull

_REMEDY = "Fix the cause; the same command then continues from the newest checkpoint"
#: Time that the end of an attempt waits for the removal of old checkpoints.
_REMOVAL_SECONDS = 30.0

log = logging.getLogger(__name__)


class CheckpointWriter:
    """Writes a job's checkpoints under one fence, all file operations in threads: a slow disk must not stop
    the event loop, and with it the heartbeat, for as long as the disk takes.

    Args:
        uploader: Receives each checkpoint; None: checkpoints are not uploaded.
    """

    def __init__(
        self,
        job_name: str,
        fence: Fence,
        store: CheckpointStore,
        members: list[TrainingClient],
        uploader: CheckpointUploader | None = None,
    ) -> None:
        self._job_name = job_name
        self._fence = fence
        self._store = store
        self._members = members
        self._uploader = uploader
        self._last_saved_step = -1
        self._remover = LeftoverRemover(store)

    async def __aenter__(self) -> "CheckpointWriter":
        self._remover.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._remover.close()

    def is_saved(self, state: JobState) -> bool:
        """Return True if a checkpoint contains the step of `state`, or no step was made yet."""
        return state.step == max(self._last_saved_step, self._store.reader.latest_step() or 0)

    async def is_among_best(self, state: JobState) -> bool:
        """Return True if a checkpoint of `state` would be kept because of its validation metric."""
        if state.step == 0 or state.validated_step != state.step:
            return False
        return await run_in_thread(
            self._store.is_among_best, state.model_dump(include={"step", "validated_step", "validation"})
        )

    async def save(self, state: JobState) -> None:
        """Save a checkpoint of `state` unless one exists.

        Raises:
            StaleFence: Another driver has taken over.
            StorageFull: Storage is full or does not answer; earlier checkpoints are intact.
            UnrecoverableError: The checkpoint cannot be written for another reason.
        """
        if state.step == self._last_saved_step:
            return
        failpoint(Failpoint.CHECKPOINT_BEFORE_BEGIN)
        try:
            folder = await run_in_thread(self._store.begin, state.step)
            try:
                shards = {
                    member.role: await self._save_shards(member, state.step, folder)
                    for member in self._members
                }
            except BaseException:
                await run_in_thread(self._store.discard, folder)
                raise
            manifest = CheckpointManifest(
                job=self._job_name,
                step=state.step,
                weight_version=state.version,
                fence=self._fence.number,
                shards=shards,
                driver_state=state.model_dump(mode="json"),
            )
            checkpoint = await run_in_thread(self._store.commit, folder, manifest)
        except CheckpointStorageFailed as error:
            raise StorageFull(str(error)) from error
        except CheckpointFailed as error:
            raise UnrecoverableError(f"{error}. {_REMEDY}") from error
        except (StorageFull, RemoteFailure) as error:
            message = f"step {state.step} was not committed: {error}; earlier checkpoints are intact"
            if isinstance(error, StorageFull):
                raise StorageFull(message) from error
            raise UnrecoverableError(f"{message}. {_REMEDY}") from error
        self._last_saved_step = state.step
        if self._uploader is not None:
            await self._uploader.enqueue(checkpoint)
        self._remover.start()

    async def _save_shards(self, member: TrainingClient, step: int, folder: Path) -> list[ShardFile]:
        """Write the shards of one role and return their records."""
        role_folder = folder / member.role
        try:
            role_folder.mkdir()
        except OSError as error:
            raise disk_error(f"{error.strerror} at {role_folder}", error) from error
        failpoint(Failpoint.CHECKPOINT_AFTER_BEGIN)
        written = await member.save(step, role_folder)
        failpoint(Failpoint.CHECKPOINT_AFTER_SHARDS)
        return [
            ShardFile(name=shard.name, size_bytes=shard.size_bytes, digest=shard.digest) for shard in written
        ]


class LeftoverRemover:
    """Deletes the folders of old checkpoints, and those of crashes, while the job goes on."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store
        self._is_requested = False
        self._stop = threading.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Delete what is left over now in the background, after a removal that is already running."""
        self._is_requested = True
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="removal of old checkpoints")

    async def close(self) -> None:
        """Wait for the removal that is running, up to a deadline. The next attempt deletes the rest."""
        if self._task is None:
            return
        _, running = await asyncio.wait({self._task}, timeout=_REMOVAL_SECONDS)
        if running:
            log.warning("old checkpoints are still being deleted; the next start deletes the rest")
            self._stop.set()

    async def _run(self) -> None:
        while self._is_requested:
            self._is_requested = False
            try:
                await asyncio.to_thread(self._store.remove_leftovers, self._stop.is_set)
            except OSError as error:
                # The next checkpoint tries again.
                log.warning("leftovers of checkpoints could not be deleted", extra={"cause": str(error)})


class TrainingHistory:
    """History of trained prompts under one fence."""

    def __init__(self, fence: Fence, lineage: Lineage) -> None:
        self._fence = fence
        self._lineage = lineage
        self._history = StepHistory(history_path(fence.run_dir, fence.number))

    def read(self) -> list[TrainedStep]:
        """Return the steps of this driver's lineage. Raises CorruptHistory."""
        return read_history(self._fence.run_dir, self._lineage)

    async def resume_at(self, state: JobState) -> None:
        """Add the step that a driver made but did not record before it died.

        Raises StaleFence, CorruptHistory.
        """
        recorded = await run_in_thread(self.read)
        if state.step > 0 and (not recorded or recorded[-1].step < state.step):
            await self.append(state)

    async def append(self, state: JobState) -> None:
        """Append the step that produced `state`. Raises StaleFence if another driver has taken over."""
        curriculum = state.curriculum or CurriculumState()
        line = TrainedStep(
            fence=self._fence.number,
            step=state.step,
            version=state.version,
            prompts=state.trained,
            dropped=curriculum.dropped,
            mean_rewards=curriculum.mean_rewards,
        )
        await run_in_thread(self._append, line)

    def _append(self, line: TrainedStep) -> None:
        self._fence.check()
        failpoint(Failpoint.HISTORY_BEFORE_APPEND)
        self._history.append(line)
        failpoint(Failpoint.HISTORY_AFTER_APPEND)


class ResultExporter:
    """Exporter of the trained model."""

    def __init__(self, trainer: TrainerClient, directory: Path, fence: Fence) -> None:
        self._trainer = trainer
        self._directory = directory
        self._fence = fence

    async def export(self, state: JobState) -> None:
        """Write the policy (or the reward model) of `state`.

        Raises StaleFence if another driver has taken over before the model is written or meanwhile.
        """
        await run_in_thread(self._fence.check)
        failpoint(Failpoint.EXPORT_BEFORE)
        await self._trainer.export(state.step, self._directory)
        failpoint(Failpoint.EXPORT_AFTER)
        await run_in_thread(self._fence.check)
