"""Copying pieces of weights into a snapshot: converted, checksummed and stored in one pass over the bytes.

Pieces are copied by as many threads as the process computes with; within a piece a stretch is converted and
checksummed while it is in the cache, and stored past it.
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Protocol

import numpy as np
import torch
import xxhash
from torch import Tensor

from kubealign.v1 import refit_pb2
from kubealign_services.refit.byte_kernels import Bytes, narrow, store

#: (offset of the first within the piece, count) -> bytes, which are good until the next are asked for
Stretches = Callable[[int, int], Bytes]

# A few of them fit into a last-level cache; less, and the calls take longer than the bytes.
_STRETCH_BYTES = 4 << 20
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
    stretches = _stretches(source, dtype)
    size = source.numel() * dtype.itemsize
    checksum = xxhash.xxh3_64()
    for start in range(0, size, _STRETCH_BYTES):
        count = min(_STRETCH_BYTES, size - start)
        stretch = stretches(start, count)
        checksum.update(stretch.data)
        mapped = target.mapped(offset + start, count)
        if mapped is not None:
            store(mapped, stretch)
        else:
            target.put(stretch.data, offset + start)
    return str(checksum.hexdigest())


def _stretches(source: Tensor, dtype: torch.dtype) -> Stretches:
    tensor = source.detach()
    if tensor.device.type != "cpu":
        # Converted there: half as much has to travel.
        tensor = tensor.to(dtype).cpu()
    flat = tensor.contiguous().reshape(-1)
    if flat.stride() != (1,):
        # A single element counts as contiguous whatever its stride is.
        flat = flat.clone(memory_format=torch.contiguous_format)
    if tensor.dtype == dtype:
        data = flat.view(torch.uint8).numpy() if flat.numel() else np.empty(0, np.uint8)
        return lambda start, count: data[start : start + count]

    size = flat.numel() * dtype.itemsize
    scratch = torch.empty(min(size, _STRETCH_BYTES) // dtype.itemsize, dtype=dtype)
    convert = _narrowed if (tensor.dtype, dtype) == (torch.float32, torch.bfloat16) else _converted

    def stretch(start: int, count: int) -> Bytes:
        into = scratch[: count // dtype.itemsize]
        convert(flat[start // dtype.itemsize :], into)
        return into.view(torch.uint8).numpy()

    return stretch


def _narrowed(source: Tensor, into: Tensor) -> None:
    # torch's own copy takes four times as long.
    narrow(source.numpy().view(np.uint32), into.view(torch.uint16).numpy())


def _converted(source: Tensor, into: Tensor) -> None:
    for first in range(0, len(into), _CONVERTED_ELEMENTS):
        part = into[first : first + _CONVERTED_ELEMENTS]
        part.copy_(source[first : first + len(part)])


class PieceCopies:
    """Copies under way. Each fills in its entry's checksum."""

    def __init__(self, threads: ThreadPoolExecutor | None, most: int) -> None:
        """threads: None: each copy is made when it begins. most: that are under way at once, so that pieces
        made for this do not pile up."""
        self._threads = threads
        self._most = most
        self._pending: deque[tuple[refit_pb2.TensorEntry, Future[str]]] = deque()

    def begin(self, entry: refit_pb2.TensorEntry, source: Tensor, dtype: torch.dtype, target: Target) -> None:
        """Raises what this copy or an earlier one raised."""
        if self._threads is None:
            entry.checksum = copied(source, dtype, target, entry.offset_bytes)
            return
        while len(self._pending) >= self._most:
            self._await_oldest()
        self._pending.append((entry, self._threads.submit(copied, source, dtype, target, entry.offset_bytes)))

    def finish(self) -> None:
        """Wait for all. Raises what one of them raised."""
        while self._pending:
            self._await_oldest()

    def _await_oldest(self) -> None:
        entry, copy = self._pending.popleft()
        entry.checksum = copy.result()


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
