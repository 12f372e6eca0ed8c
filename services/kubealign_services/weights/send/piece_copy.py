"""Copies pieces of weights into a snapshot: conversion, checksum and store, with as many threads as the
process computes with.

The common cases, a plain copy and float32 to bfloat16, are compiled (`copy_with_checksum`). Other
conversions, and files that still have to grow, are processed in chunks, which stay in the cache between
the steps.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import xxhash
from torch import Tensor

from kubealign.v1 import refit_pb2
from kubealign_services.weights.verify.copy_with_checksum import (
    Bytes,
    copy_with_checksum,
    narrow_with_checksum,
)

#: (offset within the piece, count) -> bytes, which are valid until the next call
ChunkReader = Callable[[int, int], Bytes]

_CHUNK_BYTES = 1 << 19
#: Bytes of a batch for one thread: a handover takes as long as copying half a MiB.
BATCH_BYTES = 1 << 24
# Fewer than torch's threshold for its own threads, as this code runs in threads already. A multiple of 64.
_CONVERTED_ELEMENTS = 32704


class SnapshotTarget(Protocol):
    """Destination of a snapshot's bytes."""

    def mapped_view(self, offset: int, count: int) -> Bytes | None:
        """Return the bytes at this range, to be written in place; None when they have to be written with
        `write_at`.
        """

    def write_at(self, data: memoryview, offset: int) -> None:
        """Write bytes at an offset. Raises OSError when the disk is full."""


def copy_tensor(source: Tensor, dtype: torch.dtype, target: SnapshotTarget, offset: int) -> str:
    """Write a tensor in this dtype at an offset; return its xxh3-64, hexadecimal. Raises OSError."""
    flat = _flatten(source, dtype)
    size = flat.numel() * dtype.itemsize
    mapped_target = target.mapped_view(offset, size)
    if mapped_target is not None and flat.dtype == dtype:
        return copy_with_checksum(mapped_target, _as_bytes(flat))
    if mapped_target is not None and (flat.dtype, dtype) == (torch.float32, torch.bfloat16):
        return narrow_with_checksum(mapped_target, flat.numpy())
    read_chunk = _chunk_reader(flat, dtype)
    checksum = xxhash.xxh3_64()
    for start in range(0, size, _CHUNK_BYTES):
        count = min(_CHUNK_BYTES, size - start)
        chunk = read_chunk(start, count)
        checksum.update(chunk.data)
        mapped = target.mapped_view(offset + start, count)
        if mapped is not None:
            np.copyto(mapped, chunk)
        else:
            target.write_at(chunk.data, offset + start)
    return str(checksum.hexdigest())


def _flatten(source: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the elements as a contiguous 1-D tensor on the CPU."""
    tensor = source.detach()
    if tensor.device.type != "cpu":
        # Converted on the device: half as many bytes are transferred.
        tensor = tensor.to(dtype).cpu()
    flat = tensor.contiguous().reshape(-1)
    if flat.stride() != (1,):
        # A single element counts as contiguous whatever its stride.
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat


def _as_bytes(flat: Tensor) -> Bytes:
    return flat.view(torch.uint8).numpy() if flat.numel() else np.empty(0, np.uint8)


def _chunk_reader(flat: Tensor, dtype: torch.dtype) -> ChunkReader:
    if flat.dtype == dtype:
        data = _as_bytes(flat)
        return lambda start, count: data[start : start + count]

    size = flat.numel() * dtype.itemsize
    scratch = torch.empty(min(size, _CHUNK_BYTES) // dtype.itemsize, dtype=dtype)

    def read_chunk(start: int, count: int) -> Bytes:
        into, source = scratch[: count // dtype.itemsize], flat[start // dtype.itemsize :]
        for first in range(0, len(into), _CONVERTED_ELEMENTS):
            part = into[first : first + _CONVERTED_ELEMENTS]
            part.copy_(source[first : first + len(part)])
        return into.view(torch.uint8).numpy()

    return read_chunk


@dataclass(frozen=True)
class _PieceCopyTask:
    entry: refit_pb2.TensorEntry
    source: Tensor
    dtype: torch.dtype
    target: SnapshotTarget

    def copy(self) -> None:
        self.entry.checksum = copy_tensor(self.source, self.dtype, self.target, self.entry.offset_bytes)


class PieceCopier:
    """Copies in progress. Each fills in its entry's checksum."""

    def __init__(self, threads: ThreadPoolExecutor | None, max_batches: int) -> None:
        """Create the copier.

        Args:
            threads: None to make each copy synchronously.
            max_batches: Maximum number of batches in progress, so that temporary pieces do not pile up.
        """
        self._threads = threads
        self._room = threading.Semaphore(max_batches)
        self._batch: list[_PieceCopyTask] = []
        self._batch_bytes = 0
        self._pending: deque[Future[None]] = deque()

    def submit(
        self, entry: refit_pb2.TensorEntry, source: Tensor, dtype: torch.dtype, target: SnapshotTarget
    ) -> None:
        """Submit a copy, after waiting for a free slot.

        Raises the exception of an earlier copy, or of this one.
        """
        piece = _PieceCopyTask(entry, source, dtype, target)
        if self._threads is None:
            piece.copy()
            return
        self._batch.append(piece)
        self._batch_bytes += entry.size_bytes
        if self._batch_bytes >= BATCH_BYTES:
            self._submit_batch(self._threads)

    def finish(self) -> None:
        """Wait for all copies. Raises the exception of one of them."""
        if self._threads is not None and self._batch:
            self._submit_batch(self._threads)
        while self._pending:
            self._pending.popleft().result()

    def _submit_batch(self, threads: ThreadPoolExecutor) -> None:
        batch, self._batch, self._batch_bytes = self._batch, [], 0
        # A semaphore, so that a large piece in one thread does not block the others.
        self._room.acquire()
        copies = threads.submit(_copy_batch, batch)
        copies.add_done_callback(lambda _: self._room.release())
        self._pending.append(copies)
        while self._pending and self._pending[0].done():
            self._pending.popleft().result()


def _copy_batch(pieces: list[_PieceCopyTask]) -> None:
    for piece in pieces:
        piece.copy()


@contextmanager
def piece_copier() -> Iterator[PieceCopier]:
    """Yield a copier whose copies have all ended when the block ends, however it ends."""
    count = torch.get_num_threads()
    if count == 1:
        yield PieceCopier(None, 0)
        return
    with ThreadPoolExecutor(count, "snapshot") as threads:
        copies = PieceCopier(threads, max_batches=2 * count)
        yield copies
        copies.finish()
