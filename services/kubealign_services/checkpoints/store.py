"""Checkpoint store of a job: a folder for each checkpoint, which is either complete or absent."""

import logging
import os
import re
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from kubealign_services.checkpoints.durable_files import create_file, fsync_path
from kubealign_services.checkpoints.manifest import CheckpointManifest, ShardFile, file_digest
from kubealign_services.checkpoints.retention import WRITING_PREFIX, prune_checkpoints, remove_leftovers

MANIFEST = "manifest.json"

log = logging.getLogger(__name__)

# step-00000020, and step-00000020-2 when that step was committed again.
_CHECKPOINT_NAME = re.compile(r"step-(\d{8,})(?:-(\d+))?")


class CheckpointFailed(RuntimeError):
    """A checkpoint could not be written. Earlier checkpoints are unchanged."""


class CheckpointCorrupted(RuntimeError):
    """A checkpoint does not match its manifest. Names the file and the remedy."""


@dataclass(frozen=True)
class StoredCheckpoint:
    """A complete checkpoint. The files of a role are in the folder of its name."""

    path: Path
    manifest: CheckpointManifest


class CheckpointStore:
    """Checkpoints of one job in one folder, written by one driver at a time; the newest `keep` are kept."""

    def __init__(self, directory: Path, keep: int) -> None:
        if keep < 1:
            raise ValueError(f"keep is {keep}; at least 1 checkpoint must stay")
        self._directory = directory
        self._keep = keep

    def begin(self, step: int) -> Path:
        """Create an empty folder for the shards of a step; each role writes into a subfolder of its own name.

        Remnants of an earlier unfinished checkpoint are removed. Raises CheckpointFailed.
        """
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            remove_leftovers(self._directory)
            path = self._directory / f"{WRITING_PREFIX}{step:08d}-{secrets.token_hex(4)}"
            path.mkdir()
        except OSError as error:
            raise _failure(step, self._directory, error) from error
        return path

    def discard(self, path: Path) -> None:
        """Delete the folder that `begin` returned."""
        shutil.rmtree(path, ignore_errors=True)

    def commit(self, path: Path, manifest: CheckpointManifest) -> StoredCheckpoint:
        """Make the folder that `begin` returned the newest checkpoint, durably, then remove the oldest
        checkpoints beyond `keep`.

        Raises:
            CheckpointFailed: A shard is missing or has another size than reported, or the disk failed. The
                folder is removed.
        """
        written = path
        try:
            _sync_shards(path, manifest)
            create_file(path / MANIFEST, manifest.model_dump_json(indent=1).encode())
            fsync_path(path)
            final = self._free_name(manifest.step)
            os.rename(path, final)  # noqa: PTH104
            written = final
            fsync_path(self._directory)
        except OSError as error:
            self.discard(written)
            raise _failure(manifest.step, path, error) from error
        except CheckpointFailed:
            self.discard(written)
            raise
        try:
            prune_checkpoints(self.checkpoint_paths(), self._keep)
        except OSError as error:
            # The checkpoint is valid; the next commit tries again.
            log.warning("old checkpoints could not be removed", extra={"cause": str(error)})
        return StoredCheckpoint(final, manifest)

    def checkpoint_paths(self) -> list[Path]:
        """Return the folders of all checkpoints, oldest first, unverified."""
        if not self._directory.exists():
            return []
        return sorted(
            (path for path in self._directory.iterdir() if _CHECKPOINT_NAME.fullmatch(path.name)),
            key=_step_and_attempt,
        )

    def latest_step(self) -> int | None:
        """Return the step of the newest checkpoint, unverified; None when there is none."""
        checkpoints = self.checkpoint_paths()
        return _step_and_attempt(checkpoints[-1])[0] if checkpoints else None

    def latest(self) -> StoredCheckpoint | None:
        """Return the newest checkpoint after verifying every file; None when there is none.

        Raises CheckpointCorrupted.
        """
        checkpoints = self.checkpoint_paths()
        if not checkpoints:
            return None
        newest = checkpoints[-1]
        try:
            return StoredCheckpoint(newest, _verify(newest))
        except _CorruptionFound as error:
            then = (
                f"go on from {checkpoints[-2].name}"
                if len(checkpoints) > 1
                else "start again from the job's initial weights"
            )
            raise CheckpointCorrupted(
                f"the newest checkpoint is corrupt: {error}; delete the folder {newest} to {then}"
            ) from error

    def at_step(self, step: int) -> StoredCheckpoint | None:
        """Return the newest checkpoint of a step after verifying every file; None when there is none.

        Raises CheckpointCorrupted.
        """
        matching = [path for path in self.checkpoint_paths() if _step_and_attempt(path)[0] == step]
        if not matching:
            return None
        try:
            return StoredCheckpoint(matching[-1], _verify(matching[-1]))
        except _CorruptionFound as error:
            raise CheckpointCorrupted(f"the checkpoint of step {step} is corrupt: {error}") from error

    def _free_name(self, step: int) -> Path:
        attempts = [
            _step_and_attempt(path)[1]
            for path in self.checkpoint_paths()
            if _step_and_attempt(path)[0] == step
        ]
        name = f"step-{step:08d}" + (f"-{max(attempts) + 1}" if attempts else "")
        return self._directory / name


class _CorruptionFound(Exception):
    pass


def _step_and_attempt(checkpoint: Path) -> tuple[int, int]:
    """Return (step, how many times the step has been committed) for folders whose name _CHECKPOINT_NAME
    matches.
    """
    match = _CHECKPOINT_NAME.fullmatch(checkpoint.name)
    return (int(match[1]), int(match[2] or 1)) if match else (-1, 0)


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
    return CheckpointFailed(
        f"step {step} was not committed: {error.strerror or error} at {where}; earlier checkpoints are intact"
    )
