"""The layout of a snapshot: which bytes are which tensor, and how to tell that they are the right ones. Pure.

Tensors lie one after another, each starting at a multiple of 64 bytes, in the order of the manifest.
Checksums are xxh3-64 of a tensor's bytes; the digest of the weights is xxh3-128 over the checksums'
hexadecimal text, in order.
"""

import math
from collections.abc import Iterable, Sequence

import torch
import xxhash
from torch import Tensor

from kubealign.v1 import batch_pb2, refit_pb2

ALIGNMENT = 64

#: As safetensors spells them.
DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class BadManifest(ValueError):
    """An announcement contradicts itself. Names the tensor and the field."""


class CorruptTransfer(RuntimeError):
    """Bytes that came are not those that were announced. Names the tensors."""


def aligned(offset: int) -> int:
    """The next multiple of ALIGNMENT."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def dtype_name(name: str, tensor: Tensor) -> str:
    """Raises ValueError for a tensor that is never broadcast as it is: integers, say."""
    if tensor.dtype not in _NAMES:
        raise ValueError(f"{name} has dtype {tensor.dtype}; weights are broadcast as {', '.join(DTYPES)}")
    return _NAMES[tensor.dtype]


def weights_digest(tensors: Iterable[refit_pb2.TensorEntry]) -> str:
    """xxh3-128 over the checksums in order, hexadecimal."""
    digest = xxhash.xxh3_128()
    for entry in tensors:
        digest.update(entry.checksum.encode())
    return str(digest.hexdigest())


def identity(weights: batch_pb2.WeightsId) -> str:
    """How a person would name them."""
    return f"version {weights.version} (fence {weights.fence}, digest {weights.digest[:12]})"


def check_announcement(announcement: refit_pb2.WeightsAnnouncement) -> None:
    """Raises BadManifest when sizes, offsets, dtypes or the digest do not fit one another."""
    end = 0
    for entry in announcement.tensors:
        if entry.dtype not in DTYPES:
            raise BadManifest(f"{entry.name}: dtype is {entry.dtype!r}; it may be {', '.join(DTYPES)}")
        size = math.prod(entry.shape) * DTYPES[entry.dtype].itemsize
        if entry.size_bytes != size:
            shape = tuple(entry.shape)
            raise BadManifest(
                f"{entry.name}: {entry.dtype} {shape} takes {size} bytes, not {entry.size_bytes}"
            )
        if entry.offset_bytes != aligned(end):
            raise BadManifest(f"{entry.name}: starts at {entry.offset_bytes}, not at {aligned(end)}")
        end = entry.offset_bytes + size
    if not announcement.tensors or announcement.size_bytes != end:
        raise BadManifest(
            f"size_bytes is {announcement.size_bytes}; its {len(announcement.tensors)} tensors end at {end}"
        )
    digest = weights_digest(announcement.tensors)
    if digest != announcement.weights.digest:
        raise BadManifest(f"the checksums have digest {digest}, announced was {announcement.weights.digest}")


def verify(snapshot: memoryview, tensors: Sequence[refit_pb2.TensorEntry], source: str) -> None:
    """Raises CorruptTransfer naming every tensor of the snapshot's bytes whose checksum differs."""
    corrupt = [
        entry.name
        for entry in tensors
        if xxhash.xxh3_64_hexdigest(snapshot[entry.offset_bytes : entry.offset_bytes + entry.size_bytes])
        != entry.checksum
    ]
    if corrupt:
        names = ", ".join(corrupt[:5]) + (", ..." if len(corrupt) > 5 else "")
        raise CorruptTransfer(
            f"{len(corrupt)} of {len(tensors)} tensors from {source} have the wrong checksum: {names}"
        )


def tensor_views(snapshot: memoryview, tensors: Iterable[refit_pb2.TensorEntry]) -> list[tuple[str, Tensor]]:
    """(name, tensor) for each entry, without a copy: they are valid as long as the snapshot's bytes are."""
    return [(entry.name, _view(snapshot, entry)) for entry in tensors]


def _view(snapshot: memoryview, entry: refit_pb2.TensorEntry) -> Tensor:
    dtype = DTYPES[entry.dtype]
    shape = tuple(entry.shape)
    if entry.size_bytes == 0:
        return torch.empty(shape, dtype=dtype)
    flat = torch.frombuffer(
        snapshot, dtype=dtype, count=entry.size_bytes // dtype.itemsize, offset=entry.offset_bytes
    )
    return flat.reshape(shape)
