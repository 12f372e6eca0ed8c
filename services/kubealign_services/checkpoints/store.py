"""Checkpoint store of a job: a folder for each checkpoint, which is either complete or absent."""

import logging
import os
import re
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from kubealign_services.checkpoints.durable import sync, write_new
from kubealign_services.checkpoints.manifest import CommitManifest
from kubealign_services.checkpoints.shards import ShardFile, file_digest

MANIFEST = "manifest.json"

log = logging.getLogger(__name__)

# step-00000020, and step-00000020-2 when that step was committed again.
_COMMITTED = re.compile(r"step-(\d{8,})(?:-(\d+))?")
_WRITING = ".writing-"
_REMOVING = ".removing-"


class CommitFailed(RuntimeError):
    """A checkpoint could not be written. Earlier checkpoints are unchanged."""


class CorruptCommit(RuntimeError):
    """A checkpoint does not match its manifest. Names the file and the remedy."""


@dataclass(frozen=True)
class Commit:
    """A complete checkpoint. The files of a role are in the folder of its name."""

    path: Path
    manifest: CommitManifest

    def directory(self, role: str) -> Path:
        return self.path / role


class CommitStore:
    """Checkpoints of one job in one folder, written by one driver at a time; the newest `keep` are retained.
    """

    def __init__(self, directory: Path, keep: int) -> None:
        if keep < 1:
            raise ValueError(f"keep is {keep}; at least 1 commit must stay")
        self._directory = directory
        self._keep = keep

    def begin(self, step: int) -> Path:
        """Create an empty folder for the shards of a step; each role writes into a subfolder of its own name.

        Remnants of an earlier unfinished checkpoint are removed. Raises CheckpointFailed.
        """
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._remove_leftovers()
            path = self._directory / f"{_WRITING}{step:08d}-{secrets.token_hex(4)}"
            path.mkdir()
        except OSError as error:
            raise _failed(step, self._directory, error) from error
        return path

    def abandon(self, path: Path) -> None:
        """Delete the folder that `begin` returned."""
        shutil.rmtree(path, ignore_errors=True)

    def commit(self, path: Path, manifest: CommitManifest) -> Commit:
        """Make the folder that `begin` returned the newest checkpoint, durably, then remove the oldest
        checkpoints beyond `keep`.

        Raises:
            CheckpointFailed: A shard is missing or has another size than reported, or the disk failed. The
                folder is removed.
        """
        written = path
        try:
            _sync_shards(path, manifest)
            write_new(path / MANIFEST, manifest.model_dump_json(indent=1).encode())
            sync(path)
            final = self._free_name(manifest.step)
            os.rename(path, final)  # noqa: PTH104
            written = final
            sync(self._directory)
        except OSError as error:
            self.abandon(written)
            raise _failed(manifest.step, path, error) from error
        except CommitFailed:
            self.abandon(written)
            raise
        try:
            self._prune()
        except OSError as error:
            # The checkpoint is valid; the next commit tries again.
            log.warning("old commits could not be removed", extra={"cause": str(error)})
        return Commit(final, manifest)

    def commits(self) -> list[Path]:
        """Return the folders of all checkpoints, oldest first, unverified."""
        if not self._directory.exists():
            return []
        return sorted(
            (path for path in self._directory.iterdir() if _COMMITTED.fullmatch(path.name)), key=_age
        )

    def newest_step(self) -> int | None:
        """Return the step of the newest checkpoint, unverified; None when there is none."""
        commits = self.commits()
        return _age(commits[-1])[0] if commits else None

    def newest(self) -> Commit | None:
        """Return the newest checkpoint after verifying every file; None when there is none. Raises
        CorruptCheckpoint.
        """
        commits = self.commits()
        if not commits:
            return None
        newest = commits[-1]
        try:
            return Commit(newest, _verify(newest))
        except _Corruption as error:
            then = (
                f"go on from {commits[-2].name}"
                if len(commits) > 1
                else "start again from the job's first weights"
            )
            raise CorruptCommit(
                f"the newest commit is corrupt: {error}; delete the folder {newest} to {then}"
            ) from error

    def at(self, step: int) -> Commit | None:
        """Return the newest checkpoint of a step after verifying every file; None when there is none. Raises
        CorruptCheckpoint.
        """
        matching = [path for path in self.commits() if _age(path)[0] == step]
        if not matching:
            return None
        try:
            return Commit(matching[-1], _verify(matching[-1]))
        except _Corruption as error:
            raise CorruptCommit(f"the commit of step {step} is corrupt: {error}") from error

    def _free_name(self, step: int) -> Path:
        taken = [_age(path)[1] for path in self.commits() if _age(path)[0] == step]
        name = f"step-{step:08d}" + (f"-{max(taken) + 1}" if taken else "")
        return self._directory / name

    def _prune(self) -> None:
        for old in self.commits()[: -self._keep]:
            # Rename first: a crash during the removal must not leave a folder that looks like a checkpoint.
            doomed = old.with_name(f"{_REMOVING}{old.name}-{secrets.token_hex(4)}")
            os.rename(old, doomed)  # noqa: PTH104
        self._remove_leftovers()

    def _remove_leftovers(self) -> None:
        for path in self._directory.iterdir():
            if path.name.startswith((_WRITING, _REMOVING)):
                shutil.rmtree(path)


class _Corruption(Exception):
    pass


def _age(commit: Path) -> tuple[int, int]:
    """Return (step, how many times the step has been committed) for folders whose name _CHECKPOINT_NAME
    matches.
    """
    match = _COMMITTED.fullmatch(commit.name)
    return (int(match[1]), int(match[2] or 1)) if match else (-1, 0)


def _sync_shards(path: Path, manifest: CommitManifest) -> None:
    for file, shard in _files(path, manifest):
        size = file.stat().st_size
        if size != shard.size_bytes:
            raise CommitFailed(
                f"step {manifest.step} was not committed: {file} has {size} bytes, {shard.size_bytes} were "
                "reported; earlier commits are intact"
            )
        sync(file)
    for folder in sorted({file.parent for file, _ in _files(path, manifest)}):
        sync(folder)


def _files(path: Path, manifest: CommitManifest) -> list[tuple[Path, ShardFile]]:
    return [(path / role / shard.name, shard) for role, shards in manifest.shards.items() for shard in shards]


def _verify(path: Path) -> CommitManifest:
    try:
        manifest = CommitManifest.model_validate_json((path / MANIFEST).read_bytes())
    except OSError as error:
        raise _Corruption(f"{path / MANIFEST} cannot be read ({error.strerror})") from error
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "the file"
        raise _Corruption(f"{path / MANIFEST} is not a manifest ({field}: {first['msg']})") from error
    for file, shard in _files(path, manifest):
        try:
            size = file.stat().st_size
            if size != shard.size_bytes:
                raise _Corruption(f"{file} has {size} bytes, the manifest says {shard.size_bytes}")
            digest = file_digest(file)
        except OSError as error:
            raise _Corruption(f"{file} cannot be read ({error.strerror})") from error
        if digest != shard.digest:
            raise _Corruption(f"{file} has digest {digest}, the manifest says {shard.digest}")
    return manifest


def _failed(step: int, path: Path, error: OSError) -> CommitFailed:
    where = error.filename or path
    return CommitFailed(
        f"step {step} was not committed: {error.strerror or error} at {where}; earlier commits are intact"
    )
