"""A file on a memory file system that transfers weights into a server on this machine, and the index of its
tensors.

The worker writes the file, the model in the server reads it; no other process uses it.
"""

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
#: Dtype names of safetensors.
_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


def write_weights(path: Path, tensors: Iterable[tuple[str, Tensor]]) -> list[dict[str, Any]]:
    """Write the tensors into a new file and return their index: name, dtype, shape, offset (bytes), checksum
    (xxh3-64).

    Raises ValueError for an unsupported dtype; OSError where no space is left. The caller removes the
    file.
    """
    path.unlink(missing_ok=True)
    entries: list[dict[str, Any]] = []
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        offset = 0
        for name, tensor in tensors:
            if tensor.dtype not in _NAMES:
                raise ValueError(f"{name} has dtype {tensor.dtype}; weights are {', '.join(_DTYPES)}")
            data = _tensor_bytes(tensor)
            # Written, not mapped: a full memory file system then raises an error and not a SIGBUS.
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
    """Yield (name, tensor) in the order of the entries: views of the file, to be copied within the block.

    Raises ValueError for a file that is shorter than the entries require, or for a wrong checksum; OSError
    for a missing file.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        # A private, writable map, as torch requires. An empty file cannot be mapped.
        data = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) if size else b""
    yield (_read_tensor(memoryview(data), entry) for entry in entries)


def _read_tensor(data: memoryview, entry: dict[str, Any]) -> tuple[str, Tensor]:
    name, dtype, shape = entry["name"], _DTYPES[entry["dtype"]], tuple(entry["shape"])
    count = math.prod(shape)
    start, end = entry["offset"], entry["offset"] + count * dtype.itemsize
    if end > len(data):
        raise ValueError(f"{name} ends at byte {end} of a file of weights that has {len(data)}")
    if xxhash.xxh3_64_hexdigest(data[start:end]) != entry["checksum"]:
        raise ValueError(f"{name} has another checksum in the file of weights than was written")
    if not count:
        return name, torch.empty(shape, dtype=dtype)
    return name, torch.frombuffer(data, dtype=dtype, count=count, offset=start).reshape(shape)


def _tensor_bytes(tensor: Tensor) -> memoryview:
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data if flat.numel() else memoryview(b"")


def _pwrite(file: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(file, data, offset)
        data, offset = data[written:], offset + written
