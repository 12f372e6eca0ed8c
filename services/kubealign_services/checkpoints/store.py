"""Checkpoints of a run: a folder for each, which is either complete or absent."""

import logging
import os
import re
import shutil
from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

from pydantic import ValidationError

from kubealign.checkpoint_pins import pinned_steps, pins_lock
from kubealign.storage_errors import is_storage_error
from kubealign_services.checkpoints.durable_files import create_file, fsync_path
from kubealign_services.checkpoints.fence import Fence, StaleFence
from kubealign_services.checkpoints.lineage import UNRECORDED_FENCE, Lineage, read_lineage
from kubealign_services.checkpoints.manifest import CheckpointManifest, ShardFile, file_digest
from kubealign_services.checkpoints.retention import remove_leftovers, removing_name, writing_name
from kubealign_services.checkpoints.retention_policy import RetentionPolicy
from kubealign_services.runtime.failpoints import Failpoint, failpoint

#: Folder of the checkpoints in the run directory.
CHECKPOINTS_FOLDER = "commits"
MANIFEST = "manifest.json"
#: Folder of links to the checkpoint of another run with which the run starts, see parent_checkpoint.py. It is
#: laid out like the run directory of the other run.
PARENT_FOLDER = "parent"

log = logging.getLogger(__name__)

# step-00000020-fence-3, and step-00000020-2-fence-3 when that step was committed again. Older releases wrote
# no fence.
_CHECKPOINT_NAME = re.compile(r"step-(?P<step>\d{8,})(?:-(?P<attempt>\d+))?(?:-fence-(?P<fence>\d+))?")


class CheckpointFailed(RuntimeError):
    """A checkpoint could not be written. Earlier checkpoints are unchanged."""


class CheckpointStorageFailed(CheckpointFailed):
    """The storage is full or does not answer: the same checkpoint may succeed later."""


class CheckpointCorrupted(RuntimeError):
    """A checkpoint does not match its manifest. Names the file and the remedy."""


@dataclass(frozen=True)
class StoredCheckpoint:
    """A complete checkpoint. The files of a role are in the folder of its name."""

    path: Path
    manifest: CheckpointManifest

    @property
    def age(self) -> tuple[int, int, int]:
        """Order of checkpoints of all drivers, see CheckpointName."""
        name = CheckpointName.parse(self.path.name)
        assert name is not None, f"{self.path} is no checkpoint"
        return name.age


class CheckpointReader:
    """Checkpoints of a lineage of a run.

    Args:
        lineage: None: the lineage of the newest driver.
    """

    def __init__(self, run_dir: Path, lineage: Lineage | None = None) -> None:
        self._directory = run_dir / CHECKPOINTS_FOLDER
        self._lineage = read_lineage(run_dir) if lineage is None else lineage

    def paths(self) -> list[Path]:
        """Return the folders of the lineage's checkpoints, oldest first, unverified."""
        names = [name for name in _list_checkpoints(self._directory) if self._includes(name)]
        return [self._directory / name.text for name in names]

    def latest_step(self) -> int | None:
        """Return the step of the newest checkpoint, unverified; None when there is none."""
        names = [name for name in _list_checkpoints(self._directory) if self._includes(name)]
        return names[-1].step if names else None

    def newest(self) -> StoredCheckpoint | None:
        """Return the newest checkpoint with its manifest, its other files unverified.

        None: there is none, or its manifest cannot be read.
        """
        paths = self.paths()
        if not paths:
            return None
        try:
            data = (paths[-1] / MANIFEST).read_bytes()
            return StoredCheckpoint(paths[-1], CheckpointManifest.model_validate_json(data))
        except (OSError, ValidationError) as error:
            log.error("the manifest of %s cannot be read: %s", paths[-1].name, error)
            return None

    def latest(self) -> StoredCheckpoint | None:
        """Return the newest checkpoint of which every file is verified; None when there is none at all.

        A corrupt checkpoint is skipped with an error in the log that names the file.

        Raises:
            CheckpointCorrupted: There are checkpoints, and none is intact.
        """
        problems: list[str] = []
        for path in reversed(self.paths()):
            try:
                checkpoint = StoredCheckpoint(path, _verify(path))
            except _CorruptionFound as error:
                problems.append(f"{path.name} is corrupt: {error}")
                continue
            for problem in problems:
                log.error("checkpoint %s; the job goes on from %s", problem, path.name)
            return checkpoint
        if problems:
            raise CheckpointCorrupted(
                f"no checkpoint is intact: {'; '.join(problems)}; restore one of them, or delete the folder "
                f"{self._directory} to start again from the job's initial weights"
            )
        return None

    def at_step(self, step: int) -> StoredCheckpoint | None:
        """Return the newest checkpoint of a step after verifying every file; None when there is none.

        Raises CheckpointCorrupted.
        """
        names = [name for name in _list_checkpoints(self._directory) if self._includes(name)]
        matching = [self._directory / name.text for name in names if name.step == step]
        if not matching:
            return None
        try:
            return StoredCheckpoint(matching[-1], _verify(matching[-1]))
        except _CorruptionFound as error:
            raise CheckpointCorrupted(f"the checkpoint of step {step} is corrupt: {error}") from error

    def _includes(self, name: "CheckpointName") -> bool:
        return self._lineage.includes(name.fence, name.step)


class CheckpointStore:
    """Writes the checkpoints of one fence; those of its lineage are kept by the policy, and pinned ones.

    A checkpoint's folder has the fence in its name. A rename that a replaced driver had begun before it was
    replaced therefore creates a folder of its own, beyond the steps that its successor's lineage includes.

    Args:
        pinned: Folders of checkpoints that are still read, and stay as long as they are in it.
    """

    def __init__(
        self, fence: Fence, lineage: Lineage, retention: RetentionPolicy, pinned: Container[Path] = ()
    ) -> None:
        self._directory = fence.run_dir / CHECKPOINTS_FOLDER
        self._fence = fence
        self._retention = retention
        self._scores: dict[Path, float | None] = {}
        self._pinned = pinned
        self._is_directory_durable = False
        self.reader = CheckpointReader(fence.run_dir, lineage)

    def begin(self, step: int) -> Path:
        """Create an empty folder for the shards of a step; each role writes into a subfolder of its own name.

        Raises:
            StaleFence: Another driver has taken over.
            CheckpointFailed: The disk failed.
        """
        try:
            self._fence.check()
            self._directory.mkdir(parents=True, exist_ok=True)
            if not self._is_directory_durable:
                fsync_path(self._directory.parent)
                self._is_directory_durable = True
            path = self._directory / writing_name(self._fence.number, f"step-{step:08d}")
            path.mkdir()
        except OSError as error:
            raise _failure(step, self._directory, error) from error
        return path

    def discard(self, path: Path) -> None:
        """Delete the folder that `begin` returned."""
        shutil.rmtree(path, ignore_errors=True)

    def commit(self, path: Path, manifest: CheckpointManifest) -> StoredCheckpoint:
        """Make the folder that `begin` returned the newest checkpoint, durably, then set aside for deletion
        the checkpoints that the policy does not keep, and those of lower fences that are not in the lineage.

        Raises:
            StaleFence: Another driver has taken over. Nothing of the lineage has been changed.
            CheckpointFailed: A shard is missing or has another size than reported, or the disk failed. The
                folder is removed.
        """
        try:
            _sync_shards(path, manifest)
            create_file(path / MANIFEST, manifest.model_dump_json(indent=1).encode())
            fsync_path(path)
            final = self._free_name(manifest.step)
            self._fence.check()
            failpoint(Failpoint.CHECKPOINT_BEFORE_RENAME)
            os.rename(path, final)  # noqa: PTH104
        except OSError as error:
            self.discard(path)
            raise _failure(manifest.step, path, error) from error
        except (CheckpointFailed, StaleFence):
            self.discard(path)
            raise
        try:
            failpoint(Failpoint.CHECKPOINT_AFTER_RENAME)
            fsync_path(self._directory)
        except OSError as error:
            # A successor may already have begun with this checkpoint.
            self._fence.check()
            self.discard(final)
            raise _failure(manifest.step, path, error) from error
        try:
            self._prune()
        except OSError as error:
            # The checkpoint is valid; the next commit tries again.
            log.warning("old checkpoints could not be removed", extra={"cause": str(error)})
        return StoredCheckpoint(final, manifest)

    def is_among_best(self, driver_state: Mapping[str, object]) -> bool:
        """Return True if a checkpoint with this driver state would be kept because of its metric."""
        score = self._retention.score(driver_state)
        return score is not None and self._retention.is_among_best(
            score, list(self._lineage_scores().values())
        )

    def remove_leftovers(self, should_stop: Callable[[], bool] = lambda: False) -> None:
        """Delete what `commit` has set aside, what lower fences have left, and the links to the checkpoint
        of another run once there is one of this run. Raises OSError.
        """
        if self.reader.latest_step() is not None:
            shutil.rmtree(self._directory.parent / PARENT_FOLDER, ignore_errors=True)
        if self._directory.exists():
            remove_leftovers(self._directory, self._fence.number, should_stop)

    def _prune(self) -> None:
        # Only renamed here: a crash during the removal must not leave a folder that looks like a checkpoint.
        remaining = self._retention.retained(self._lineage_scores(), _step_of)
        with pins_lock(self._fence.run_dir):
            pinned = pinned_steps(self._fence.run_dir)
            for name in _list_checkpoints(self._directory):
                path = self._directory / name.text
                if path in remaining or path in self._pinned or name.fence > self._fence.number:
                    continue
                if name.step in pinned:
                    continue
                self._fence.check()
                target = self._directory / removing_name(self._fence.number, path.name)
                os.rename(path, target)  # noqa: PTH104

    def _lineage_scores(self) -> dict[Path, float | None]:
        """Return checkpoint -> score, oldest first. Manifests are read once."""
        paths = self.reader.paths()
        if self._retention.best is None:
            return dict.fromkeys(paths)
        self._scores = {
            path: self._scores[path] if path in self._scores else self._read_score(path) for path in paths
        }
        return self._scores

    def _read_score(self, path: Path) -> float | None:
        try:
            manifest = CheckpointManifest.model_validate_json((path / MANIFEST).read_bytes())
        except (OSError, ValidationError) as error:
            log.error("the manifest of %s cannot be read: %s", path.name, error)
            return None
        return self._retention.score(manifest.driver_state)

    def _free_name(self, step: int) -> Path:
        attempts = [
            name.attempt
            for name in _list_checkpoints(self._directory)
            if (name.step, name.fence) == (step, self._fence.number)
        ]
        repeated = f"-{max(attempts) + 1}" if attempts else ""
        return self._directory / f"step-{step:08d}{repeated}-fence-{self._fence.number}"


class _CorruptionFound(Exception):
    pass


class CheckpointName(NamedTuple):
    """Parts of a folder's name, in the order in which names sort. attempt: how many times this fence has
    committed the step.
    """

    step: int
    fence: int
    attempt: int
    text: str

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Parse the name of a checkpoint's folder; None: another name."""
        match = _CHECKPOINT_NAME.fullmatch(text)
        if match is None:
            return None
        return cls(
            int(match["step"]), int(match["fence"] or UNRECORDED_FENCE), int(match["attempt"] or 1), text
        )

    @property
    def age(self) -> tuple[int, int, int]:
        """Order of the checkpoints of all drivers: a higher fence is newer, also at a lower step."""
        return self.fence, self.step, self.attempt


def _step_of(checkpoint: Path) -> int:
    name = CheckpointName.parse(checkpoint.name)
    assert name is not None, f"{checkpoint} is no checkpoint"
    return name.step


def _list_checkpoints(directory: Path) -> list[CheckpointName]:
    """Return the names of all complete checkpoints, of every fence, oldest first."""
    if not directory.exists():
        return []
    names = (CheckpointName.parse(path.name) for path in directory.iterdir())
    return sorted(name for name in names if name is not None)


def _sync_shards(path: Path, manifest: CheckpointManifest) -> None:
    for file, shard in _shard_paths(path, manifest):
        size = file.stat().st_size
        if size != shard.size_bytes:
            raise CheckpointFailed(
                f"step {manifest.step} was not committed: {file} has {size} bytes, {shard.size_bytes} were "
                "reported; earlier checkpoints are intact"
            )
        fsync_path(file)
    for folder in sorted({file.parent for file, _ in _shard_paths(path, manifest)}):
        fsync_path(folder)


def _shard_paths(path: Path, manifest: CheckpointManifest) -> list[tuple[Path, ShardFile]]:
    return [(path / role / shard.name, shard) for role, shards in manifest.shards.items() for shard in shards]


def _verify(path: Path) -> CheckpointManifest:
    try:
        manifest = CheckpointManifest.model_validate_json((path / MANIFEST).read_bytes())
    except OSError as error:
        raise _CorruptionFound(f"{path / MANIFEST} cannot be read ({error.strerror})") from error
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "the file"
        raise _CorruptionFound(f"{path / MANIFEST} is not a manifest ({field}: {first['msg']})") from error
    for file, shard in _shard_paths(path, manifest):
        try:
            size = file.stat().st_size
            if size != shard.size_bytes:
                raise _CorruptionFound(f"{file} has {size} bytes, the manifest says {shard.size_bytes}")
            digest = file_digest(file)
        except OSError as error:
            raise _CorruptionFound(f"{file} cannot be read ({error.strerror})") from error
        if digest != shard.digest:
            raise _CorruptionFound(f"{file} has digest {digest}, the manifest says {shard.digest}")
    return manifest


def _failure(step: int, path: Path, error: OSError) -> CheckpointFailed:
    where = error.filename or path
    kind = CheckpointStorageFailed if is_storage_error(error) else CheckpointFailed
    return kind(
        f"step {step} was not committed: {error.strerror or error} at {where}; earlier checkpoints are intact"
    )
