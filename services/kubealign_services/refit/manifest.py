"""The layout of snapshots: which bytes are which piece of which tensor, and how to tell that they are the
right ones. Pure.

A sender's ranks have a part each. In a part the pieces lie one after another, each starting at a multiple of
64 bytes, in the order of the manifest. Checksums are xxh3-64 of a piece's bytes; the digest of the weights is
xxh3-128 over the checksums' hexadecimal text, part after part by rank, in order.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import chain

import torch
import xxhash
from torch import Tensor

from kubealign.v1 import batch_pb2, refit_pb2
from kubealign_services.refit.tiling import Box, overlap, uncovered

ALIGNMENT = 64

#: As safetensors spells them.
DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class BadManifest(ValueError):
    """An announcement contradicts itself. Names the tensor and the field or the range."""


class CorruptTransfer(RuntimeError):
    """Bytes that came are not those that were announced. Names the tensors."""


def aligned(offset: int) -> int:
    """The next multiple of ALIGNMENT."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def dtype_name(name: str, dtype: torch.dtype) -> str:
    """Raises ValueError for what is never broadcast as it is: integers, say. name: of the tensor."""
    if dtype not in _NAMES:
        raise ValueError(f"{name} has dtype {dtype}; weights are broadcast as {', '.join(DTYPES)}")
    return _NAMES[dtype]


def weights_digest(parts: Iterable[refit_pb2.WeightsPart]) -> str:
    """xxh3-128 over the checksums in order, hexadecimal."""
    digest = xxhash.xxh3_128()
    for entry in chain.from_iterable(part.tensors for part in parts):
        digest.update(entry.checksum.encode())
    return str(digest.hexdigest())


def identity(weights: batch_pb2.WeightsId) -> str:
    """How a person would name them."""
    return f"version {weights.version} (fence {weights.fence}, digest {weights.digest[:12]})"


def box_of(entry: refit_pb2.TensorEntry) -> Box:
    """Where the piece lies in its tensor."""
    shape = tuple(entry.shape)
    return Box(tuple(entry.start), shape) if entry.start else Box.whole(shape)


def whole_shape(entry: refit_pb2.TensorEntry) -> tuple[int, ...]:
    """Of the tensor that the piece is of."""
    return tuple(entry.whole_shape) or tuple(entry.shape)


def check_announcement(announcement: refit_pb2.WeightsAnnouncement) -> None:
    """Raises BadManifest when sizes, offsets, dtypes, pieces or the digest do not fit one another."""
    pieces: dict[str, list[tuple[int, refit_pb2.TensorEntry]]] = {}
    ranks = [part.rank for part in announcement.parts]
    if ranks != sorted(set(ranks)):
        raise BadManifest(f"parts are of the ranks {ranks}; each comes once, in ascending order")
    for part in announcement.parts:
        _check_part(part)
        for entry in part.tensors:
            pieces.setdefault(entry.name, []).append((part.rank, entry))
    size = sum(part.size_bytes for part in announcement.parts)
    if not pieces or announcement.size_bytes != size:
        raise BadManifest(
            f"size_bytes is {announcement.size_bytes}; its {len(pieces)} tensors take {size} bytes"
        )
    for name, held in pieces.items():
        _check_tensor(name, held)
    digest = weights_digest(announcement.parts)
    if digest != announcement.weights.digest:
        raise BadManifest(f"the checksums have digest {digest}, announced was {announcement.weights.digest}")


def _check_part(part: refit_pb2.WeightsPart) -> None:
    end = 0
    for entry in part.tensors:
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
    if part.size_bytes != end:
        raise BadManifest(
            f"size_bytes of rank {part.rank} is {part.size_bytes}; "
            f"its {len(part.tensors)} tensors end at {end}"
        )
    if part.delta_sizes and len(part.delta_sizes) != len(part.tensors):
        raise BadManifest(
            f"delta_sizes of rank {part.rank} has {len(part.delta_sizes)} entries "
            f"for {len(part.tensors)} tensors"
        )


def _check_tensor(name: str, held: Sequence[tuple[int, refit_pb2.TensorEntry]]) -> None:
    """The pieces are of one tensor, and together the whole of it, once."""
    first = held[0][1]
    if len(held) == 1 and not first.start and not first.whole_shape:
        return
    whole = Box.whole(whole_shape(first))
    for rank, entry in held:
        if entry.dtype != first.dtype:
            raise BadManifest(f"{name}: dtype is {first.dtype} at rank {held[0][0]}, {entry.dtype} at {rank}")
        if whole_shape(entry) != whole.shape:
            raise BadManifest(
                f"{name}: whole_shape is {list(whole.shape)} at rank {held[0][0]}, "
                f"{list(whole_shape(entry))} at {rank}"
            )
        dimensions = len(entry.start) or len(entry.shape)
        if not dimensions == len(entry.shape) == len(whole.shape):
            raise BadManifest(f"{name}: start, shape and whole_shape of rank {rank} differ in dimensions")
        if any(end > size for end, size in zip(box_of(entry).end, whole.shape, strict=True)):
            raise BadManifest(
                f"{name}: {box_of(entry)} of rank {rank} reaches beyond the shape {list(whole.shape)}"
            )
    boxes = [box_of(entry) for _, entry in held]
    pair = overlap(boxes)
    if pair is not None:
        one, other = pair
        raise BadManifest(
            f"{name}: {boxes[one]} of rank {held[one][0]} and {boxes[other]} of rank {held[other][0]} overlap"
        )
    if sum(box.size for box in boxes) != whole.size:
        raise BadManifest(f"{name}: {uncovered(whole, boxes)} of {list(whole.shape)} is in no part")


def piece_view(snapshot: memoryview, entry: refit_pb2.TensorEntry) -> Tensor:
    """The piece, without a copy: valid as long as the part's bytes are."""
    dtype = DTYPES[entry.dtype]
    shape = tuple(entry.shape)
    if entry.size_bytes == 0:
        return torch.empty(shape, dtype=dtype)
    flat = torch.frombuffer(
        snapshot, dtype=dtype, count=entry.size_bytes // dtype.itemsize, offset=entry.offset_bytes
    )
    return flat.reshape(shape)
