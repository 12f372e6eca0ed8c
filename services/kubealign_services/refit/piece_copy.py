"""Copying pieces of weights into a snapshot: converted, checksummed and stored in one pass over the bytes, by
as many threads as the process computes with.

The usual ones, as they are or float32 as bfloat16, are compiled (`checked_copy`). What is converted
otherwise, or goes into a file that still has to grow, goes a stretch at a time, which stays in the cache
between the steps.
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
from kubealign_services.refit.checked_copy import Bytes, checked_copy, checked_narrowing

#: (offset of the first within the piece, count) -> bytes, which are good until the next are asked for
Stretches = Callable[[int, int], Bytes]

_STRETCH_BYTES = 1 << 19
# Handed from thread to thread at once: to do that takes as long as to copy half a MiB.
_HANDFUL_BYTES = 1 << 24
# Below what torch hands to its own threads: these are threads already. A multiple of 64.
_CONVERTED_ELEMENTS = 32704


class Target(Protocol):
    """Where a snapshot's bytes go."""

    def mapped(self, offset: int, count: int) -> Bytes | None:
        """The bytes themselves, to be written in place; None: they have to be `put`."""

    def put(self, data: memoryview, offset: int) -> None:
        """Write bytes. Raises OSError when there is no room."""


def copied(source: Tensor, dtype: torch.dtype, target: Target, offset: int) -> str:
    """Write a tensor in this precision at an offset. Its checksum: xxh3-64, hexadecimal. Raises OSError."""
    flat = _flat(source, dtype)
    size = flat.numel() * dtype.itemsize
    whole = target.mapped(offset, size)
    if whole is not None and flat.dtype == dtype:
        return checked_copy(whole, _bytes(flat))
    if whole is not None and (flat.dtype, dtype) == (torch.float32, torch.bfloat16):
        return checked_narrowing(whole, flat.numpy())
    stretches = _stretches(flat, dtype)
    checksum = xxhash.xxh3_64()
    for start in range(0, size, _STRETCH_BYTES):
        count = min(_STRETCH_BYTES, size - start)
        stretch = stretches(start, count)
        checksum.update(stretch.data)
        mapped = target.mapped(offset + start, count)
        if mapped is not None:
            np.copyto(mapped, stretch)
        else:
            target.put(stretch.data, offset + start)
    return str(checksum.hexdigest())


def _flat(source: Tensor, dtype: torch.dtype) -> Tensor:
    """Its elements one after another, on the CPU."""
    tensor = source.detach()
    if tensor.device.type != "cpu":
        # Converted there: half as much has to travel.
        tensor = tensor.to(dtype).cpu()
    flat = tensor.contiguous().reshape(-1)
    if flat.stride() != (1,):
        # A single element counts as contiguous whatever its stride is.
        flat = flat.clone(memory_format=torch.contiguous_format)
    return flat


def _bytes(flat: Tensor) -> Bytes:
    return flat.view(torch.uint8).numpy() if flat.numel() else np.empty(0, np.uint8)


def _stretches(flat: Tensor, dtype: torch.dtype) -> Stretches:
    if flat.dtype == dtype:
        data = _bytes(flat)
        return lambda start, count: data[start : start + count]

    size = flat.numel() * dtype.itemsize
    scratch = torch.empty(min(size, _STRETCH_BYTES) // dtype.itemsize, dtype=dtype)

    def stretch(start: int, count: int) -> Bytes:
        into, source = scratch[: count // dtype.itemsize], flat[start // dtype.itemsize :]
        for first in range(0, len(into), _CONVERTED_ELEMENTS):
            part = into[first : first + _CONVERTED_ELEMENTS]
            part.copy_(source[first : first + len(part)])
        return into.view(torch.uint8).numpy()

    return stretch


@dataclass(frozen=True)
class _Piece:
    entry: refit_pb2.TensorEntry
    source: Tensor
    dtype: torch.dtype
    target: Target

    def copy(self) -> None:
        self.entry.checksum = copied(self.source, self.dtype, self.target, self.entry.offset_bytes)


class PieceCopies:
    """Copies under way. Each fills in its entry's checksum."""

    def __init__(self, threads: ThreadPoolExecutor | None, most: int) -> None:
        """threads: None: each copy is made when it begins. most: handfuls that are under way at once, so that
        pieces made for this do not pile up."""
        self._threads = threads
        self._room = threading.Semaphore(most)
        self._handful: list[_Piece] = []
        self._handful_bytes = 0
        self._pending: deque[Future[None]] = deque()

    def begin(self, entry: refit_pb2.TensorEntry, source: Tensor, dtype: torch.dtype, target: Target) -> None:
        """Wait until there is room for one more. Raises what an earlier copy raised, or this one."""
        piece = _Piece(entry, source, dtype, target)
        if self._threads is None:
            piece.copy()
            return
        self._handful.append(piece)
        self._handful_bytes += entry.size_bytes
        if self._handful_bytes >= _HANDFUL_BYTES:
            self._hand_over(self._threads)

    def finish(self) -> None:
        """Wait for all. Raises what one of them raised."""
        if self._threads is not None and self._handful:
            self._hand_over(self._threads)
        while self._pending:
            self._pending.popleft().result()

    def _hand_over(self, threads: ThreadPoolExecutor) -> None:
        handful, self._handful, self._handful_bytes = self._handful, [], 0
        # A large piece in one thread keeps none of the others waiting: whichever ends makes room.
        self._room.acquire()
        copies = threads.submit(_copy_all, handful)
        copies.add_done_callback(lambda _: self._room.release())
        self._pending.append(copies)
        while self._pending and self._pending[0].done():
            self._pending.popleft().result()


def _copy_all(pieces: list[_Piece]) -> None:
    for piece in pieces:
        piece.copy()


@contextmanager
def piece_copies() -> Iterator[PieceCopies]:
    """All copies have ended when the block has, however it ends."""
    count = torch.get_num_threads()
    if count == 1:
        yield PieceCopies(None, 0)
        return
    with ThreadPoolExecutor(count, "snapshot") as threads:
        copies = PieceCopies(threads, most=2 * count)
        yield copies
        copies.finish()
