"""Manifest of a weights snapshot: layout of the pieces, and validation of announcements. Pure.

Each rank of the sender has a part. In a part the pieces are stored in the order of the manifest, each
starting at a multiple of 64 bytes. Checksums are xxh3-64 of a piece's bytes; the digest of the weights is
xxh3-128 over the checksums' hexadecimal text, part after part by rank, in order.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import chain

import torch
import xxhash
from torch import Tensor

from kubealign.v1 import batch_pb2, refit_pb2
from kubealign_services.weights.announce.tensor_regions import Box, find_overlap, find_uncovered

ALIGNMENT = 64

#: Dtypes by their safetensors names.
DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}


class BadManifest(ValueError):
    """An announcement contradicts itself. Names the tensor and the field or the range."""


class CorruptTransfer(RuntimeError):
    """Received bytes differ from the announced ones. Names the tensors."""


def align_offset(offset: int) -> int:
    """Round up to a multiple of ALIGNMENT."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def dtype_name(name: str, dtype: torch.dtype) -> str:
    """Return the manifest's name of a dtype.

    Args:
        name: Name of the tensor.

    Raises:
        ValueError: The dtype is not allowed for weights, such as integers.
    """
    if dtype not in _DTYPE_NAMES:
        raise ValueError(f"{name} has dtype {dtype}; weights are broadcast as {', '.join(DTYPES)}")
    return _DTYPE_NAMES[dtype]


def weights_digest(parts: Iterable[refit_pb2.WeightsPart]) -> str:
    """Return the xxh3-128 over the checksums in order, hexadecimal."""
    digest = xxhash.xxh3_128()
    for entry in chain.from_iterable(part.tensors for part in parts):
        digest.update(entry.checksum.encode())
    return str(digest.hexdigest())


def describe_weights(weights: batch_pb2.WeightsId) -> str:
    """Return a readable name of the weights."""
    return f"version {weights.version} (fence {weights.fence}, digest {weights.digest[:12]})"


def piece_box(entry: refit_pb2.TensorEntry) -> Box:
    """Return the position of the piece in its tensor."""
    shape = tuple(entry.shape)
    return Box(tuple(entry.start), shape) if entry.start else Box.whole(shape)


def tensor_shape(entry: refit_pb2.TensorEntry) -> tuple[int, ...]:
    """Return the shape of the full tensor that the piece belongs to."""
    return tuple(entry.whole_shape) or tuple(entry.shape)


def check_announcement(announcement: refit_pb2.WeightsAnnouncement) -> None:
    """Raise BadManifest when sizes, offsets, dtypes, pieces or the digest are inconsistent."""
    pieces: dict[str, list[tuple[int, refit_pb2.TensorEntry]]] = {}
    ranks = [part.rank for part in announcement.parts]
    if ranks != sorted(set(ranks)):
        raise BadManifest(f"parts are of the ranks {ranks}; each may occur once, in ascending order")
    for part in announcement.parts:
        _check_part(part)
        for entry in part.tensors:
            pieces.setdefault(entry.name, []).append((part.rank, entry))
    size = sum(part.size_bytes for part in announcement.parts)
    if not pieces or announcement.size_bytes != size:
        raise BadManifest(
            f"size_bytes is {announcement.size_bytes}; its {len(pieces)} tensors take {size} bytes"
        )
    for name, tensor_pieces in pieces.items():
        _check_tensor(name, tensor_pieces)
    digest = weights_digest(announcement.parts)
    if digest != announcement.weights.digest:
        announced = announcement.weights.digest
        raise BadManifest(f"the checksums have digest {digest}, the announced digest is {announced}")


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
        if entry.offset_bytes != align_offset(end):
            raise BadManifest(f"{entry.name}: starts at {entry.offset_bytes}, not at {align_offset(end)}")
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


def _check_tensor(name: str, pieces: Sequence[tuple[int, refit_pb2.TensorEntry]]) -> None:
    """Check that the pieces cover one tensor completely and without overlap."""
    first = pieces[0][1]
    if len(pieces) == 1 and not first.start and not first.whole_shape:
        return
    full = Box.whole(tensor_shape(first))
    for rank, entry in pieces:
        if entry.dtype != first.dtype:
            raise BadManifest(
                f"{name}: dtype is {first.dtype} at rank {pieces[0][0]}, {entry.dtype} at {rank}"
            )
        if tensor_shape(entry) != full.shape:
            raise BadManifest(
                f"{name}: whole_shape is {list(full.shape)} at rank {pieces[0][0]}, "
                f"{list(tensor_shape(entry))} at {rank}"
            )
        dimensions = len(entry.start) or len(entry.shape)
        if not dimensions == len(entry.shape) == len(full.shape):
            raise BadManifest(f"{name}: start, shape and whole_shape of rank {rank} differ in dimensions")
        if any(end > size for end, size in zip(piece_box(entry).end, full.shape, strict=True)):
            raise BadManifest(
                f"{name}: {piece_box(entry)} of rank {rank} reaches beyond the shape {list(full.shape)}"
            )
    boxes = [piece_box(entry) for _, entry in pieces]
    pair = find_overlap(boxes)
    if pair is not None:
        first_index, second_index = pair
        raise BadManifest(
            f"{name}: {boxes[first_index]} of rank {pieces[first_index][0]} and "
            f"{boxes[second_index]} of rank {pieces[second_index][0]} overlap"
        )
    if sum(box.size for box in boxes) != full.size:
        raise BadManifest(f"{name}: {find_uncovered(full, boxes)} of {list(full.shape)} is in no part")


def piece_view(snapshot: memoryview, entry: refit_pb2.TensorEntry) -> Tensor:
    """Return the piece as a view: valid as long as the part's bytes are."""
    dtype = DTYPES[entry.dtype]
    shape = tuple(entry.shape)
    if entry.size_bytes == 0:
        return torch.empty(shape, dtype=dtype)
    flat = torch.frombuffer(
        snapshot, dtype=dtype, count=entry.size_bytes // dtype.itemsize, offset=entry.offset_bytes
    )
    return flat.reshape(shape)
