"""A snapshot file: a header, then the pieces' bytes. One process writes it, others map it.

The header says whose bytes these are, and is blanked before the first of them changes. Who reads holds a
shared lock of the file for as long as it has views of the bytes; who writes needs the lock for itself, and
takes another file where it cannot have it. So what is read is never overwritten, and of a process that dies
the kernel takes the lock away.

Files grow and never shrink, so every map stays valid. What a file has not held before is written with pwrite,
so a full memory file system is an error here and not a SIGBUS; what it has, through a map that is kept: the
pages are there.
"""

import fcntl
import mmap
import os
import struct
import weakref
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np

from kubealign.v1 import batch_pb2, refit_pb2
from kubealign_services.refit.checked_copy import Bytes
from kubealign_services.refit.manifest import DTYPES, aligned, dtype_name
from kubealign_services.refit.piece_copy import piece_copies
from kubealign_services.training.slices import WeightSlice

HEADER_BYTES = 64
_MAGIC = b"kubealgn"
_HEADER = struct.Struct("<8sQQ16s")
_BLANK = bytes(HEADER_BYTES)
# Of Linux 5.14; Python has no name for it yet.
_MADV_POPULATE_WRITE = 23


def header_of(weights: batch_pb2.WeightsId) -> bytes:
    """The first HEADER_BYTES of a file that holds these weights whole."""
    packed = _HEADER.pack(_MAGIC, weights.fence, weights.version, bytes.fromhex(weights.digest))
    return packed.ljust(HEADER_BYTES, b"\0")


class SnapshotFile:
    """The writer's side of one file, made anew. Not for several writers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        self._closing = weakref.finalize(self, os.close, self._file)
        self._map: Bytes = np.empty(0, np.uint8)

    def claim(self) -> bool:
        """Have the file for oneself until `seal`. False where somebody reads it, or where the file system has
        no locks, so that nobody could know."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def write(self, slices: Iterable[WeightSlice]) -> list[refit_pb2.TensorEntry]:
        """Replace the contents by these pieces, which may be made one at a time. `seal` must follow.

        Raises ValueError for a dtype that is not broadcast or a piece that comes twice; OSError when there is
        no room.
        """
        self.blank()
        entries: dict[tuple[str, tuple[int, ...]], refit_pb2.TensorEntry] = {}
        end = 0
        with piece_copies() as copies:
            for piece in slices:
                if (piece.name, piece.start) in entries:
                    raise ValueError(f"{piece.name} comes twice among the weights")
                entry = _entry(piece, aligned(end))
                if entry.offset_bytes > end:
                    self.put(bytes(entry.offset_bytes - end), end)
                copies.begin(entry, piece.tensor, DTYPES[entry.dtype], self)
                entries[piece.name, piece.start] = entry
                end = entry.offset_bytes + entry.size_bytes
        self._keep_map(HEADER_BYTES + end)
        return list(entries.values())

    def blank(self) -> None:
        """From here on the file is nobody's."""
        self._pwrite(_BLANK, 0)

    def put(self, data: bytes | memoryview, offset: int) -> None:
        """Write bytes at an offset as in the manifest. Raises OSError when there is no room."""
        self._pwrite(data, HEADER_BYTES + offset)

    def mapped(self, offset: int, count: int) -> Bytes | None:
        """Bytes at an offset as in the manifest, to be written in place; None where the file may have to
        grow."""
        start = HEADER_BYTES + offset
        return self._map[start : start + count] if start + count <= len(self._map) else None

    def seal(self, weights: batch_pb2.WeightsId) -> None:
        """Say whose bytes these are, and let others read them."""
        self._pwrite(header_of(weights), 0)
        with suppress(OSError):  # Of a file system without locks nothing was claimed.
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def read(self, offset: int, count: int) -> bytes:
        """Bytes of the snapshot, from an offset as in the manifest."""
        data = os.pread(self._file, count, HEADER_BYTES + offset)
        if len(data) != count:
            raise OSError(
                f"{self.path} ends at {offset + len(data)}, wanted were {count} bytes from {offset}"
            )
        return data

    def remove(self) -> None:
        """Take the file away. Whoever has it open or mapped keeps what it has, `read` included."""
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Take the file away, and let go of it."""
        self.remove()
        self._map = np.empty(0, np.uint8)
        self._closing()

    def _keep_map(self, size: int) -> None:
        """Map what has been written, once: to touch a page for the first time takes longer than to fill
        it."""
        if size <= len(self._map):
            return
        pages = mmap.mmap(self._file, size)
        with suppress(OSError):  # An older kernel: each page comes when it is written to.
            pages.madvise(_MADV_POPULATE_WRITE)
        self._map = np.frombuffer(pages, np.uint8)

    def _pwrite(self, data: bytes | memoryview, offset: int) -> None:
        rest = memoryview(data)
        while rest:
            written = os.pwrite(self._file, rest, offset)
            offset += written
            rest = rest[written:]


def _entry(piece: WeightSlice, offset: int) -> refit_pb2.TensorEntry:
    """All but its checksum. Raises ValueError."""
    shape = tuple(piece.tensor.shape)
    is_whole = shape == piece.shape
    dtype = dtype_name(piece.name, piece.dtype or piece.tensor.dtype)
    return refit_pb2.TensorEntry(
        name=piece.name,
        shape=shape,
        dtype=dtype,
        offset_bytes=offset,
        size_bytes=piece.tensor.numel() * DTYPES[dtype].itemsize,
        start=() if is_whole else piece.start,
        whole_shape=() if is_whole else piece.shape,
    )


def ranges(tensors: Iterable[refit_pb2.TensorEntry], longest: int) -> Iterator[tuple[int, int]]:
    """(offset, count) that cover these pieces, neighbours together, none longer than `longest` bytes."""
    start = end = 0
    for entry in tensors:
        if entry.offset_bytes != aligned(end):
            yield from cut(start, end, longest)
            start = entry.offset_bytes
        end = entry.offset_bytes + entry.size_bytes
    yield from cut(start, end, longest)


def cut(start: int, end: int, longest: int) -> Iterator[tuple[int, int]]:
    """(offset, count) that cover start to end, none longer than `longest` bytes."""
    for offset in range(start, end, longest):
        yield offset, min(longest, end - offset)
