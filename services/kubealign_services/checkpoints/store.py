"""The commits of a job: folders that are either whole or not there."""

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
    """A commit could not be made. The commits before it are as they were."""


class CorruptCommit(RuntimeError):
    """A commit does not hold what its manifest says. Names the file and the remedy."""


@dataclass(frozen=True)
class Commit:
    """A whole commit. The files of a role lie in the folder of its name."""

    path: Path
    manifest: CommitManifest

    def directory(self, role: str) -> Path:
        return self.path / role


class CommitStore:
    """One job's commits in one folder, written by one driver at a time; the newest `keep` of them stay."""

    def __init__(self, directory: Path, keep: int) -> None:
        if keep < 1:
            raise ValueError(f"keep is {keep}; at least 1 commit must stay")
        self._directory = directory
        self._keep = keep

    def begin(self, step: int) -> Path:
        """A fresh folder for the shards of a step; each role writes into a folder of its own name within it.

        What an earlier commit left unfinished is removed. Raises CommitFailed.
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
        """Give up what `begin` returned: its files go away."""
        shutil.rmtree(path, ignore_errors=True)

    def commit(self, path: Path, manifest: CommitManifest) -> Commit:
        """Make what `begin` returned the newest commit, durably, then remove the oldest ones beyond `keep`.

        Raises CommitFailed, with the folder removed, when a shard is missing or not of the size
        reported, or the disk refuses.
        """
        made = path
        try:
            _sync_shards(path, manifest)
            write_new(path / MANIFEST, manifest.model_dump_json(indent=1).encode())
            sync(path)
            final = self._free_name(manifest.step)
            os.rename(path, final)  # noqa: PTH104
            made = final
            sync(self._directory)
        except OSError as error:
            self.abandon(made)
            raise _failed(manifest.step, path, error) from error
        except CommitFailed:
            self.abandon(made)
            raise
        try:
            self._prune()
        except OSError as error:
            # The commit stands; the next one tries again.
            log.warning("old commits could not be removed", extra={"cause": str(error)})
        return Commit(final, manifest)

    def commits(self) -> list[Path]:
        """Folders of all commits, oldest first, unverified."""
        if not self._directory.exists():
            return []
        return sorted(
            (path for path in self._directory.iterdir() if _COMMITTED.fullmatch(path.name)), key=_age
        )

    def newest_step(self) -> int | None:
        """The step of the newest commit, unverified; None when there is none yet."""
        commits = self.commits()
        return _age(commits[-1])[0] if commits else None

    def newest(self) -> Commit | None:
        """The newest commit, every file of it verified; None when there is none yet. Raises CorruptCommit."""
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
        """The newest commit of a step, every file of it verified; None when there is none. Raises
        CorruptCommit."""
        found = [path for path in self.commits() if _age(path)[0] == step]
        if not found:
            return None
        try:
            return Commit(found[-1], _verify(found[-1]))
        except _Corruption as error:
            raise CorruptCommit(f"the commit of step {step} is corrupt: {error}") from error

    def _free_name(self, step: int) -> Path:
        taken = [_age(path)[1] for path in self.commits() if _age(path)[0] == step]
        name = f"step-{step:08d}" + (f"-{max(taken) + 1}" if taken else "")
        return self._directory / name

    def _prune(self) -> None:
        for old in self.commits()[: -self._keep]:
            # A crash half-way must not leave something that looks like a commit: rename first.
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
    """(step, how many times it had been committed), for folders that _COMMITTED matches."""
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
        place = ".".join(str(part) for part in first["loc"]) or "the whole file"
        raise _Corruption(f"{path / MANIFEST} is not a manifest ({place}: {first['msg']})") from error
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


def _failed(step: int, place: Path, error: OSError) -> CommitFailed:
    where = error.filename or place
    return CommitFailed(
        f"step {step} was not committed: {error.strerror or error} at {where}; earlier commits are intact"
    )
