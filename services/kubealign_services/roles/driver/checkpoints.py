"""Checkpoints (shards of trainer and critic, driver state), the training history and the job's result."""

from pathlib import Path

from kubealign_services.checkpoints.history import StepHistory, TrainedStep
from kubealign_services.checkpoints.manifest import CheckpointManifest, ShardFile
from kubealign_services.checkpoints.store import CheckpointFailed, CheckpointStore
from kubealign_services.roles.driver.errors import UnrecoverableError
from kubealign_services.roles.driver.state import CurriculumState, JobState
from kubealign_services.roles.driver.trainer_client import TrainerClient, TrainingClient
from kubealign_services.runtime.rpc.errors import RemoteFailure, StorageFull

_REMEDY = "Fix the cause; the same command then continues from the newest checkpoint"


class CheckpointWriter:
    """Writes a job's checkpoints under one fence."""

    def __init__(
        self, job_name: str, fence: int, store: CheckpointStore, members: list[TrainingClient]
    ) -> None:
        self._job_name = job_name
        self._fence = fence
        self._store = store
        self._members = members
        self._last_saved_step = -1

    def is_saved(self, state: JobState) -> bool:
        """Return True if a checkpoint contains the step of `state`, or no step was made yet."""
        return state.step == max(self._last_saved_step, self._store.latest_step() or 0)

    async def save(self, state: JobState) -> None:
        """Save a checkpoint of `state` unless one exists.

        Raises UnrecoverableError if the disk refuses; earlier checkpoints are intact.
        """
        if state.step == self._last_saved_step:
            return
        try:
            folder = self._store.begin(state.step)
            try:
                shards = {
                    member.role: await self._save_shards(member, state.step, folder)
                    for member in self._members
                }
            except BaseException:
                self._store.discard(folder)
                raise
            self._store.commit(
                folder,
                CheckpointManifest(
                    job=self._job_name,
                    step=state.step,
                    weight_version=state.version,
                    fence=self._fence,
                    shards=shards,
                    driver_state=state.model_dump(mode="json"),
                ),
            )
        except CheckpointFailed as error:
            raise UnrecoverableError(f"{error}. {_REMEDY}") from error
        except (StorageFull, RemoteFailure) as error:
            raise UnrecoverableError(
                f"step {state.step} was not committed: {error}; earlier checkpoints are intact. {_REMEDY}"
            ) from error
        self._last_saved_step = state.step

    async def _save_shards(self, member: TrainingClient, step: int, folder: Path) -> list[ShardFile]:
        """Write the shards of one role and return their records."""
        role_folder = folder / member.role
        try:
            role_folder.mkdir()
        except OSError as error:
            raise StorageFull(f"{error.strerror} at {role_folder}") from error
        written = await member.save(step, role_folder)
        return [
            ShardFile(name=shard.name, size_bytes=shard.size_bytes, digest=shard.digest) for shard in written
        ]


class TrainingHistory:
    """History file of trained prompts, kept consistent with the state."""

    def __init__(self, path: Path, fence: int) -> None:
        self._history = StepHistory(path)
        self._fence = fence

    def resume_at(self, state: JobState) -> None:
        """Drop the steps that a rollback undid; add the step that a driver made but did not record before it
        died.
        """
        self._history.truncate_after(state.step)
        recorded = self._history.read()
        if state.step > 0 and (not recorded or recorded[-1].step < state.step):
            self.append(state)

    def append(self, state: JobState) -> None:
        """Append the step that produced `state`."""
        curriculum = state.curriculum or CurriculumState()
        self._history.append(
            TrainedStep(
                fence=self._fence,
                step=state.step,
                version=state.version,
                prompts=state.trained,
                dropped=curriculum.dropped,
                mean_rewards=curriculum.mean_rewards,
            )
        )


class ResultExporter:
    """Exporter of the trained model."""

    def __init__(self, trainer: TrainerClient, directory: Path) -> None:
        self._trainer = trainer
        self._directory = directory

    async def export(self, state: JobState) -> None:
        """Write the policy (or the reward model) of `state`."""
        await self._trainer.export(state.step, self._directory)
