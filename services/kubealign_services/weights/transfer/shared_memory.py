"""Reads a snapshot that another process of this machine or pod has written into a shared folder."""

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
from kubealign_services.runtime.rpc.errors import NotFound
from kubealign_services.weights.announce.manifest import describe_weights
from kubealign_services.weights.send.snapshot_file import HEADER_BYTES, encode_header

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class SnapshotGone(NotFound):
    """The requested snapshot has been replaced by a newer one, or never existed."""


def host_identity(directory: Path) -> str:
    """Return an id that is equal for two processes exactly when `directory` is the same folder of the same
    running machine.

    Raises OSError when the folder does not exist.
    """
    status = directory.stat()
    return f"{_BOOT_ID.read_text().strip()}:{status.st_dev}:{status.st_ino}"


class SnapshotMaps:
    """Cache of file maps that are read repeatedly: the first access to a page takes longer than its checksum.

    A map does not validate its contents; the lock and the header do, on every use.
    """

    def __init__(self) -> None:
        # By device and inode, which are unique as long as the file is mapped.
        self._maps: dict[tuple[int, int], tuple[Path, mmap.mmap]] = {}
        self._lock = threading.Lock()

    def map_file(self, path: Path, file: int, size: int) -> mmap.mmap:
        """Return a map of the first `size` bytes of an open file, or more.

        Raises ValueError when the file is shorter.

        Files that their writer has removed are dropped, so that their memory is freed with the last view.
        """
        key = _inode_key(os.fstat(file))
        with self._lock:
            self._maps = {
                cached_key: cached
                for cached_key, cached in self._maps.items()
                if _inode_key_at(cached[0]) == cached_key
            }
            cached = self._maps.get(key)
            if cached is None or len(cached[1]) < size:
                # A private map: an accidental write to a view does not reach other readers.
                cached = path, mmap.mmap(file, size, access=mmap.ACCESS_COPY)
                self._maps[key] = cached
            return cached[1]

    def clear(self) -> None:
        """Drop all maps, so that files are mapped anew."""
        with self._lock:
            self._maps = {}


class MappedSnapshot:
    """A view of a snapshot file.

    lasts: the file is locked, and its bytes stay unchanged as long as a view of `snapshot` exists, also
    after `close`. On a file system without locks, copy before use: `check_valid` tells whether the bytes
    were valid until then.
    """

    def __init__(
        self,
        directory: Path,
        name: str,
        weights: batch_pb2.WeightsId,
        size_bytes: int,
        maps: SnapshotMaps | None = None,
    ) -> None:
        """Open the snapshot.

        Args:
            size_bytes: Size of the part in the file.
            maps: Map cache of this process, if it has one.

        Raises:
            SnapshotGone: The file does not exist or holds other weights.
        """
        if Path(name).name != name:
            raise SnapshotGone(f"{name!r} is not the name of a file in {directory}")
        self._weights = weights
        path = directory / name
        try:
            file = _OpenFile(path)
        except FileNotFoundError:
            raise self._gone_error(path) from None
        self._file: _OpenFile | None = file
        try:
            self.lasts = file.lock()
            self._check_header()
            mapped_file = (maps or SnapshotMaps()).map_file(path, file.descriptor, HEADER_BYTES + size_bytes)
        except (BlockingIOError, ValueError, SnapshotGone):
            raise self._gone_error(path) from None
        contents = np.frombuffer(mapped_file, np.uint8)[HEADER_BYTES : HEADER_BYTES + size_bytes]
        data = contents.view(_LockedBytes)
        data.file = file
        self.snapshot: memoryview = data.data if size_bytes else memoryview(b"")

    def check_valid(self) -> None:
        """Raise SnapshotGone when a later publication overwrites the bytes; never when `lasts`."""
        if not self.lasts:
            self._check_header()

    def close(self) -> None:
        """Release the file; the lock is held until the last view is gone."""
        self.snapshot = memoryview(b"")
        self._file = None

    def _check_header(self) -> None:
        if self._file is None:
            raise ValueError("the snapshot has been closed")
        if os.pread(self._file.descriptor, HEADER_BYTES, 0) != encode_header(self._weights):
            raise self._gone_error(None)

    def _gone_error(self, path: Path | None) -> SnapshotGone:
        return SnapshotGone(
            f"weights {describe_weights(self._weights)} have been overwritten by later ones"
            + (f" or never were in {path}" if path else "")
        )


class _OpenFile:
    """An open file, unlocked and closed with its last reference."""

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY)
        weakref.finalize(self, _unlock_and_close, self.descriptor)

    def lock(self) -> bool:
        """Take a shared lock.

        Returns False when the file system has no locks. Raises BlockingIOError while the file is written.
        """
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            raise
        except OSError:
            return False
        return True


class _LockedBytes(np.ndarray[Any, np.dtype[np.uint8]]):
    """Bytes of a map that reference the locked file, so that every view keeps the lock."""

    file: _OpenFile


def _unlock_and_close(descriptor: int) -> None:
    # Unlock explicitly: a map keeps the file open beyond the close.
    with suppress(OSError):  # There are no locks.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)


def _inode_key(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _inode_key_at(path: Path) -> tuple[int, int] | None:
    try:
        return _inode_key(path.stat())
    except FileNotFoundError:
        return None
