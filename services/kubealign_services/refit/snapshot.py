"""A snapshot file: a header, then the pieces' bytes. One process writes it, others map it.

The header says whose bytes these are, and is blanked before the first of them changes: a reader that finds
the same header before and after has read one whole snapshot. Files grow and never shrink, so a reader's map
stays valid; they are written with pwrite, so a full memory file system is an error here and not a SIGBUS.
"""

import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
import xxhash
from torch import Tensor

from kubealign.v1 import batch_pb2, refit_pb2
from kubealign_services.refit.manifest import aligned, dtype_name
from kubealign_services.training.slices import WeightSlice

HEADER_BYTES = 64
_MAGIC = b"kubealgn"
_HEADER = struct.Struct("<8sQQ16s")
_BLANK = bytes(HEADER_BYTES)
# Small enough to stay in the cache between the checksum and the copy.
_COPY_BYTES = 1 << 20


def header_of(weights: batch_pb2.WeightsId) -> bytes:
    """The first HEADER_BYTES of a file that holds these weights whole."""
    packed = _HEADER.pack(_MAGIC, weights.fence, weights.version, bytes.fromhex(weights.digest))
    return packed.ljust(HEADER_BYTES, b"\0")


class SnapshotFile:
    """The writer's side of one file, made anew. Not for several writers."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)

    def write(self, slices: Iterable[WeightSlice]) -> list[refit_pb2.TensorEntry]:
        """Replace the contents by these pieces, which may be made one at a time. `seal` must follow.

        Raises ValueError for a dtype that is not broadcast or a piece that comes twice; OSError when there is
        no room.
        """
        self.blank()
        entries: dict[tuple[str, tuple[int, ...]], refit_pb2.TensorEntry] = {}
        offset = 0
        for piece in slices:
            if (piece.name, piece.start) in entries:
                raise ValueError(f"{piece.name} comes twice among the weights")
            padding = aligned(offset) - offset
            self.put(bytes(padding), offset)
            offset += padding
            entry = self._write_piece(piece, offset)
            entries[piece.name, piece.start] = entry
            offset += entry.size_bytes
        return list(entries.values())

    def blank(self) -> None:
        """From here on the file is nobody's."""
        self._pwrite(_BLANK, 0)

    def put(self, data: bytes | memoryview, offset: int) -> None:
        """Write bytes at an offset as in the manifest. Raises OSError when there is no room."""
        self._pwrite(data, HEADER_BYTES + offset)

    def seal(self, weights: batch_pb2.WeightsId) -> None:
        """Say whose bytes these are."""
        self._pwrite(header_of(weights), 0)

    def read(self, offset: int, count: int) -> bytes:
        """Bytes of the snapshot, from an offset as in the manifest."""
        data = os.pread(self._file, count, HEADER_BYTES + offset)
        if len(data) != count:
            raise OSError(
                f"{self.path} ends at {offset + len(data)}, wanted were {count} bytes from {offset}"
            )
        return data

    def close(self) -> None:
        """Remove the file. Readers that have mapped it keep what they have."""
        self.path.unlink(missing_ok=True)
        os.close(self._file)

    def _write_piece(self, piece: WeightSlice, offset: int) -> refit_pb2.TensorEntry:
        data = _bytes_of(piece.tensor)
        checksum = xxhash.xxh3_64()
        for start in range(0, len(data), _COPY_BYTES):
            stretch = data[start : start + _COPY_BYTES]
            checksum.update(stretch)
            self.put(stretch, offset + start)
        shape = tuple(piece.tensor.shape)
        is_whole = shape == piece.shape
        return refit_pb2.TensorEntry(
            name=piece.name,
            shape=shape,
            dtype=dtype_name(piece.name, piece.tensor),
            offset_bytes=offset,
            size_bytes=len(data),
            checksum=checksum.hexdigest(),
            start=() if is_whole else piece.start,
            whole_shape=() if is_whole else piece.shape,
        )

    def _pwrite(self, data: bytes | memoryview, offset: int) -> None:
        rest = memoryview(data)
        while rest:
            written = os.pwrite(self._file, rest, offset)
            offset += written
            rest = rest[written:]


def _bytes_of(tensor: Tensor) -> memoryview:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")


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
