"""Weights on their way into a server of this machine: a file on a memory file system, and what lies in it
where. The writer is the worker, the reader the model in the server; the file is theirs alone."""

import math
import mmap
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch import Tensor

_ALIGNMENT = 64
#: As safetensors spells them.
_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def write_weights(path: Path, tensors: Iterable[tuple[str, Tensor]]) -> list[dict[str, Any]]:
    """Write them into a new file; what is where: name, dtype, shape, offset (bytes), checksum (xxh3-64).

    Raises ValueError for a dtype that weights do not have; OSError where there is no room. The caller removes
    the file."""
    path.unlink(missing_ok=True)
    entries: list[dict[str, Any]] = []
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        offset = 0
        for name, tensor in tensors:
            if tensor.dtype not in _NAMES:
                raise ValueError(f"{name} has dtype {tensor.dtype}; weights are {', '.join(_DTYPES)}")
            data = _bytes_of(tensor)
            # Written, not mapped: a full memory file system is an error then and not a SIGBUS.
            _pwrite(file, data, offset)
            entries.append(
                {
                    "name": name,
                    "dtype": _NAMES[tensor.dtype],
                    "shape": list(tensor.shape),
                    "offset": offset,
                    "checksum": xxhash.xxh3_64_hexdigest(data),
                }
            )
            offset += -(-len(data) // _ALIGNMENT) * _ALIGNMENT
        os.ftruncate(file, offset)
    finally:
        os.close(file)
    return entries


@contextmanager
def read_weights(path: Path, entries: Iterable[dict[str, Any]]) -> Iterator[Iterator[tuple[str, Tensor]]]:
    """(name, tensor) in the entries' order: views of the file, to be copied from within the block.

    Raises ValueError for a file that is shorter than the entries say, or a checksum that is another; OSError
    for one that is not there."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        # A private map, which torch may have for its own. An empty file has none.
        whole = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) if size else b""
    yield (_read(memoryview(whole), entry) for entry in entries)


def _read(whole: memoryview, entry: dict[str, Any]) -> tuple[str, Tensor]:
    name, dtype, shape = entry["name"], _DTYPES[entry["dtype"]], tuple(entry["shape"])
    count = math.prod(shape)
    start, end = entry["offset"], entry["offset"] + count * dtype.itemsize
    if end > len(whole):
        raise ValueError(f"{name} ends at byte {end} of a file of weights that has {len(whole)}")
    if xxhash.xxh3_64_hexdigest(whole[start:end]) != entry["checksum"]:
        raise ValueError(f"{name} has another checksum in the file of weights than was written")
    if not count:
        return name, torch.empty(shape, dtype=dtype)
    return name, torch.frombuffer(whole, dtype=dtype, count=count, offset=start).reshape(shape)


def _bytes_of(tensor: Tensor) -> memoryview:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")


def _pwrite(file: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(file, data, offset)
        data, offset = data[written:], offset + written
