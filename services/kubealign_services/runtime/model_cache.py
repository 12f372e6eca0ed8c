"""Copies of models on a disk of the node, from which its processes load them again and again.

KUBEALIGN_MODEL_CACHE names the folder of the copies; without it models are loaded from where they are. The
first process that loads a model copies it while the others of the node wait. The cache only saves time: where
it cannot hold a copy, the model is loaded from its source.
"""

import hashlib
import logging
import math
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

ENVIRONMENT_VARIABLE = "KUBEALIGN_MODEL_CACHE"
SIZE_VARIABLE = "KUBEALIGN_MODEL_CACHE_GIB"
#: Time for another process to copy models.
_LOCK_SECONDS = 3600.0
#: A copy that was asked for within this time is not removed: its files may not be open yet.
_OPENING_SECONDS = 3600.0
_LOCK, _PARTIAL = "lock", "partial"

log = logging.getLogger(__name__)


def local_copy(folder: Path, variables: Mapping[str, str] = os.environ) -> Path:
    """Return the folder to load a model from: its copy on this node, or `folder` itself.

    Blocks while the model is copied. Raises ValueError for a KUBEALIGN_MODEL_CACHE_GIB that is no number
    above 0.

    Args:
        folder: Hugging Face folder of the model; of subfolders nothing is copied.
    """
    cache = variables.get(ENVIRONMENT_VARIABLE)
    return ModelCache(Path(cache), _limit(variables.get(SIZE_VARIABLE))).copy_of(folder) if cache else folder


def _limit(text: str | None) -> float:
    try:
        gib = math.inf if not text else float(text)
    except ValueError:
        gib = math.nan
    if not gib > 0:
        raise ValueError(f"{SIZE_VARIABLE} is {text!r}; it is a number of GiB above 0")
    return gib * 2**30


@dataclass(frozen=True)
class _Source:
    """Files of a model.

    sizes: Size of each file in bytes, by name. digest: of the folder's path and the names, sizes and
    modification times of its files, so that a replaced file is another model.
    """

    folder: Path
    sizes: Mapping[str, int]
    digest: str

    @classmethod
    def read(cls, folder: Path) -> "_Source":
        stats = {path.name: path.stat() for path in sorted(folder.iterdir()) if path.is_file()}
        described = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats.items()]
        digest = hashlib.sha256(repr((str(folder.resolve()), described)).encode()).hexdigest()
        return cls(folder, {name: stat.st_size for name, stat in stats.items()}, digest)

    @property
    def size(self) -> int:
        return sum(self.sizes.values())


class ModelCache:
    """The copies in a folder, of which those that were not used for the longest time are removed first."""

    def __init__(self, folder: Path, most_bytes: float = math.inf) -> None:
        self._folder = folder
        self._most_bytes = most_bytes

    def copy_of(self, folder: Path) -> Path:
        """Return the copy of a model's folder, or the folder itself where no copy can be made."""
        try:
            source = _Source.read(folder)
            copy = self._folder / source.digest
            if not _is_complete(copy, source):
                self._folder.mkdir(parents=True, exist_ok=True)
                with FileLock(self._folder / _LOCK, timeout=_LOCK_SECONDS):
                    if not _is_complete(copy, source) and not self._make(source, copy):
                        return folder
            # The time of its last use.
            os.utime(copy)
        except Timeout:
            log.warning(
                "the model is loaded from its source: another process copies models",
                extra={"model": str(folder)},
            )
            return folder
        except OSError as error:
            log.warning(
                "the model is loaded from its source: the cache of models cannot be used",
                extra={"model": str(folder), "cause": str(error)},
            )
            return folder
        return copy

    def _make(self, source: _Source, copy: Path) -> bool:
        """Copy the model, if there is room for it. The lock must be held."""
        if not self._make_room(source.size):
            log.warning(
                "the model is loaded from its source: the cache of models has no room for it",
                extra={"model": str(source.folder), "bytes": source.size},
            )
            return False
        started = time.monotonic()
        partial = self._folder / _PARTIAL
        shutil.rmtree(partial, ignore_errors=True)
        shutil.rmtree(copy, ignore_errors=True)
        partial.mkdir()
        for name in source.sizes:
            shutil.copyfile(source.folder / name, partial / name)
            _flush(partial / name)
        partial.rename(copy)
        log.info(
            "copied a model to this node",
            extra={"model": str(source.folder), "bytes": source.size, "seconds": time.monotonic() - started},
        )
        return True

    def _make_room(self, size: int) -> bool:
        """Remove copies until there is room for `size` bytes; return False if there cannot be."""
        newest = time.time() - _OPENING_SECONDS
        copies = sorted(self._copies(), key=lambda copy: copy.stat().st_mtime)
        used = {copy: sum(file.stat().st_size for file in copy.iterdir()) for copy in copies}
        removable = [copy for copy in copies if copy.stat().st_mtime < newest]
        excess = max(
            sum(used.values()) + size - self._most_bytes, size - shutil.disk_usage(self._folder).free
        )
        if excess > sum(used[copy] for copy in removable):
            return False
        for copy in removable:
            if excess <= 0:
                break
            log.info("removed the copy of a model", extra={"folder": str(copy), "bytes": used[copy]})
            # Processes that have its files open keep them.
            shutil.rmtree(copy)
            excess -= used[copy]
        return True

    def _copies(self) -> list[Path]:
        return [path for path in self._folder.iterdir() if path.is_dir() and path.name != _PARTIAL]


def _is_complete(copy: Path, source: _Source) -> bool:
    return all(
        (copy / name).is_file() and (copy / name).stat().st_size == size
        for name, size in source.sizes.items()
    )


def _flush(file: Path) -> None:
    """Wait until a file is on the disk: a copy outlives a crash of the node."""
    with file.open("rb") as opened:
        os.fsync(opened.fileno())
