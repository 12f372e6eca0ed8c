"""Commits and history: shards from trainer and critic, the driver's state, and which prompts each step was
trained on."""

from pathlib import Path

from kubealign_services.checkpoints.history import History, TrainedStep
from kubealign_services.checkpoints.manifest import CommitManifest
from kubealign_services.checkpoints.shards import ShardFile
from kubealign_services.checkpoints.store import CommitFailed, CommitStore
from kubealign_services.driver.failures import JobFailed
from kubealign_services.driver.state import JobState
from kubealign_services.driver.training_client import TrainingClient
from kubealign_services.rpc.errors import RemoteFailure, StorageFull

_REMEDY = "With the cause mended, the same command goes on from the newest of them"


class Commits:
    """Makes a job's commits under one fence."""

    def __init__(self, job_name: str, fence: int, store: CommitStore, members: list[TrainingClient]) -> None:
        self._job_name = job_name
        self._fence = fence
        self._store = store
        self._members = members
        self._committed = -1

    def holds(self, state: JobState) -> bool:
        """Whether nothing of it would be lost: a commit holds its step, or no step was made yet."""
        return state.step == max(self._committed, self._store.newest_step() or 0)

    async def commit(self, state: JobState) -> None:
        """Commit the state, unless it is committed already. Raises JobFailed when the disk refuses; earlier
        commits are intact."""
        if state.step == self._committed:
            return
        try:
            folder = self._store.begin(state.step)
            try:
                shards = {
                    member.role: await self._save(member, state.step, folder) for member in self._members
                }
            except BaseException:
                self._store.abandon(folder)
                raise
            self._store.commit(
                folder,
                CommitManifest(
                    job=self._job_name,
                    step=state.step,
                    weight_version=state.version,
                    fence=self._fence,
                    shards=shards,
                    driver_state=state.model_dump(mode="json"),
                ),
            )
        except CommitFailed as error:
            raise JobFailed(f"{error}. {_REMEDY}") from error
        except (StorageFull, RemoteFailure) as error:
            raise JobFailed(
                f"step {state.step} was not committed: {error}; earlier commits are intact. {_REMEDY}"
            ) from error
        self._committed = state.step

    async def _save(self, member: TrainingClient, step: int, folder: Path) -> list[ShardFile]:
        own = folder / member.role
        try:
            own.mkdir()
        except OSError as error:
            raise StorageFull(f"{error.strerror} at {own}") from error
        written = await member.save(step, own)
        return [
            ShardFile(name=shard.name, size_bytes=shard.size_bytes, digest=shard.digest) for shard in written
        ]


class TrainedPrompts:
    """The history file, kept in step with the state."""

    def __init__(self, path: Path, fence: int) -> None:
        self._history = History(path)
        self._fence = fence

    def resume_at(self, state: JobState) -> None:
        """Forget what a rollback undid; add the step that a driver made and did not live to write down."""
        self._history.truncate_after(state.step)
        done = self._history.read()
        if state.step > 0 and (not done or done[-1].step < state.step):
            self.add(state)

    def add(self, state: JobState) -> None:
        """Note the step that made this state."""
        self._history.append(
            TrainedStep(fence=self._fence, step=state.step, version=state.version, prompts=state.trained)
        )
