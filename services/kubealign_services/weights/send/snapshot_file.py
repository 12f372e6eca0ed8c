"""Snapshot file: a header, then the bytes of the pieces. One process writes it, others map it.

The header names the weights, and is cleared before the first byte changes. A reader holds a shared lock of
the file as long as it has views of the bytes; a writer needs an exclusive lock, and uses another file when
it cannot get it. So bytes in use are never overwritten, and the kernel releases the lock of a process that
dies.

Files grow and never shrink, so every map stays valid. New ranges are written with pwrite, so that a full
memory file system is an error here and not a SIGBUS; existing ranges are written through a cached map,
whose pages are allocated.
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
from kubealign_services.training.weight_slices import WeightSlice
from kubealign_services.weights.announce.manifest import DTYPES, align_offset, dtype_name
from kubealign_services.weights.send.piece_copy import piece_copier
from kubealign_services.weights.verify.copy_with_checksum import Bytes

HEADER_BYTES = 64
_MAGIC = b"kubealgn"
_HEADER = struct.Struct("<8sQQ16s")
_BLANK = bytes(HEADER_BYTES)
# Since Linux 5.14; not defined by Python yet.
_MADV_POPULATE_WRITE = 23


def encode_header(weights: batch_pb2.WeightsId) -> bytes:
    """Return the first HEADER_BYTES of a file that completely holds these weights."""
    packed = _HEADER.pack(_MAGIC, weights.fence, weights.version, bytes.fromhex(weights.digest))
    return packed.ljust(HEADER_BYTES, b"\0")


class SnapshotFile:
    """Writer of one new file. Not for several writers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        self._closing = weakref.finalize(self, os.close, self._file)
        self._map: Bytes = np.empty(0, np.uint8)

    def try_lock(self) -> bool:
        """Lock the file exclusively until `seal`.

        Returns False when a reader uses it, or when the file system has no locks.
        """
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def write(self, slices: Iterable[WeightSlice]) -> list[refit_pb2.TensorEntry]:
        """Replace the contents by these pieces, which may be produced one at a time. `seal` must follow.

        Raises:
            ValueError: A dtype is not supported, or a piece is given twice.
            OSError: The disk is full.
        """
        self.clear_header()
        entries: dict[tuple[str, tuple[int, ...]], refit_pb2.TensorEntry] = {}
        end = 0
        with piece_copier() as copies:
            for piece in slices:
                if (piece.name, piece.start) in entries:
                    raise ValueError(f"{piece.name} occurs twice among the weights")
                entry = _tensor_entry(piece, align_offset(end))
                if entry.offset_bytes > end:
                    self.write_at(bytes(entry.offset_bytes - end), end)
                copies.submit(entry, piece.tensor, DTYPES[entry.dtype], self)
                entries[piece.name, piece.start] = entry
                end = entry.offset_bytes + entry.size_bytes
        self._keep_map(HEADER_BYTES + end)
        return list(entries.values())

    def clear_header(self) -> None:
        """Invalidate the file: its header names no weights."""
        self._pwrite(_BLANK, 0)

    def write_at(self, data: bytes | memoryview, offset: int) -> None:
        """Write bytes at an offset of the manifest. Raises OSError when the disk is full."""
        self._pwrite(data, HEADER_BYTES + offset)

    def mapped_view(self, offset: int, count: int) -> Bytes | None:
        """Return the bytes at an offset of the manifest, to be written in place; None when the file may have
        to grow.
        """
        start = HEADER_BYTES + offset
        return self._map[start : start + count] if start + count <= len(self._map) else None

    def seal(self, weights: batch_pb2.WeightsId) -> None:
        """Write the header and release the lock, so that readers can use the file."""
        self._pwrite(encode_header(weights), 0)
        with suppress(OSError):  # Without locks nothing was locked.
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def read(self, offset: int, count: int) -> bytes:
        """Return bytes from an offset of the manifest."""
        data = os.pread(self._file, count, HEADER_BYTES + offset)
        if len(data) != count:
            raise OSError(
                f"{self.path} ends at {offset + len(data)}; {count} bytes from {offset} were requested"
            )
        return data

    def remove(self) -> None:
        """Unlink the file. Processes that have it open or mapped, including `read`, can still use it."""
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Unlink and close the file."""
        self.remove()
        self._map = np.empty(0, np.uint8)
        self._closing()

    def _keep_map(self, size: int) -> None:
        """Map the written bytes once: the first access to a page takes longer than writing it."""
        if size <= len(self._map):
            return
        pages = mmap.mmap(self._file, size)
        with suppress(OSError):  # On older kernels pages are allocated at the first write.
            pages.madvise(_MADV_POPULATE_WRITE)
        self._map = np.frombuffer(pages, np.uint8)

    def _pwrite(self, data: bytes | memoryview, offset: int) -> None:
        rest = memoryview(data)
        while rest:
            written = os.pwrite(self._file, rest, offset)
            offset += written
            rest = rest[written:]


def _tensor_entry(piece: WeightSlice, offset: int) -> refit_pb2.TensorEntry:
    """Return the manifest entry of a piece, without its checksum. Raises ValueError."""
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


def chunk_ranges(tensors: Iterable[refit_pb2.TensorEntry], longest: int) -> Iterator[tuple[int, int]]:
    """Yield (offset, count) that cover these pieces, adjacent ones together, none longer than `longest`
    bytes.
    """
    start = end = 0
    for entry in tensors:
        if entry.offset_bytes != align_offset(end):
            yield from split_range(start, end, longest)
            start = entry.offset_bytes
        end = entry.offset_bytes + entry.size_bytes
    yield from split_range(start, end, longest)


def split_range(start: int, end: int, longest: int) -> Iterator[tuple[int, int]]:
    """Yield (offset, count) that cover start to end, none longer than `longest` bytes."""
    for offset in range(start, end, longest):
        yield offset, min(longest, end - offset)
