"""Reading a snapshot that another process of this machine or pod has written into a folder that both see."""

import fcntl
import mmap
import os
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from kubealign.v1 import batch_pb2
from kubealign_services.refit.manifest import identity
from kubealign_services.refit.snapshot import HEADER_BYTES, header_of
from kubealign_services.rpc.errors import NotFound

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class SnapshotGone(NotFound):
    """The snapshot asked for has been replaced by newer ones, or never was there."""


def host_identity(directory: Path) -> str:
    """The same for two processes exactly when `directory` is one folder of one running machine for both.

    Raises OSError when the folder does not exist.
    """
    status = directory.stat()
    return f"{_BOOT_ID.read_text().strip()}:{status.st_dev}:{status.st_ino}"


class SnapshotMaps:
    """Maps of files that are read again and again: the first touch of a page takes longer than its checksum.

    A map says nothing of what is in it: that is for the lock and the header, each time anew.
    """

    def __init__(self) -> None:
        # By device and inode, which nobody else has as long as the file is mapped.
        self._maps: dict[tuple[int, int], tuple[Path, mmap.mmap]] = {}
        self._lock = threading.Lock()

    def of(self, path: Path, file: int, size: int) -> mmap.mmap:
        """The first `size` bytes of an open file, or more. Raises ValueError where it has fewer. Files that
        their writer has removed are forgotten, so that their memory is freed with the last view."""
        key = _key(os.fstat(file))
        with self._lock:
            self._maps = {kept: held for kept, held in self._maps.items() if _key_at(held[0]) == kept}
            held = self._maps.get(key)
            if held is None or len(held[1]) < size:
                # A private map: what is done to the views by mistake does not reach other readers.
                held = path, mmap.mmap(file, size, access=mmap.ACCESS_COPY)
                self._maps[key] = held
            return held[1]

    def forget(self) -> None:
        """What is read next is mapped anew."""
        with self._lock:
            self._maps = {}


class MappedSnapshot:
    """A view of a snapshot file.

    lasts: the file is locked, and the bytes stay what they are as long as there is a view of `snapshot`, also
    after `close`. Where the file system has no locks, copy before using it: `confirm` says whether it was
    valid until then.
    """

    def __init__(
        self,
        directory: Path,
        name: str,
        weights: batch_pb2.WeightsId,
        size_bytes: int,
        maps: SnapshotMaps | None = None,
    ) -> None:
        """size_bytes: of the part that the file holds. maps: of this process, where it has any. Raises
        SnapshotGone when the file is not there or holds something else."""
        if Path(name).name != name:
            raise SnapshotGone(f"{name!r} is not the name of a file in {directory}")
        self._weights = weights
        path = directory / name
        try:
            file = _OpenFile(path)
        except FileNotFoundError:
            raise self._gone(path) from None
        self._file: _OpenFile | None = file
        try:
            self.lasts = file.lock()
            self._check()
            whole = (maps or SnapshotMaps()).of(path, file.descriptor, HEADER_BYTES + size_bytes)
        except (BlockingIOError, ValueError, SnapshotGone):
            raise self._gone(path) from None
        data = np.frombuffer(whole, np.uint8)[HEADER_BYTES : HEADER_BYTES + size_bytes].view(_LockedBytes)
        data.file = file
        self.snapshot: memoryview = data.data if size_bytes else memoryview(b"")

    def confirm(self) -> None:
        """Raises SnapshotGone when a later publication has begun to overwrite the bytes: never, where they
        last."""
        if not self.lasts:
            self._check()

    def close(self) -> None:
        """Let go of the file, which is locked until the last view of it has gone."""
        self.snapshot = memoryview(b"")
        self._file = None

    def _check(self) -> None:
        if self._file is None:
            raise ValueError("the snapshot has been closed")
        if os.pread(self._file.descriptor, HEADER_BYTES, 0) != header_of(self._weights):
            raise self._gone(None)

    def _gone(self, path: Path | None) -> SnapshotGone:
        return SnapshotGone(
            f"weights {identity(self._weights)} have been overwritten by later ones"
            + (f" or never were in {path}" if path else "")
        )


class _OpenFile:
    """Open, and locked where it is, until nobody holds it any more."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, _unlock, self.descriptor)

    def lock(self) -> bool:
        """Share the file's lock. False: there are no locks. Raises BlockingIOError while it is written."""
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:
            return False
        return True


class _LockedBytes(np.ndarray[Any, np.dtype[np.uint8]]):
    """Bytes of a map that hold the file's lock: whatever views them holds them."""

    file: _OpenFile


def _unlock(descriptor: int) -> None:
    # Said, not left to the closing: a map has the file open too.
    with suppress(OSError):  # There are no locks.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def _key(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _key_at(path: Path) -> tuple[int, int] | None:
    try:
        return _key(path.stat())
    except FileNotFoundError:
        return None
