"""Rectangles of checkpoint tensors and their offsets in a rank's parameters. Pure arithmetic.

All rearrangement between megatron-core and Hugging Face is such copying of rectangles, so it applies to
weights, to an optimiser's moments and to adapters alike.
"""

from dataclasses import dataclass

from kubealign_services.training.megatron_backend.model.architecture import ModelArchitecture
from kubealign_services.training.megatron_backend.parallel.layout import ParallelLayout
from kubealign_services.training.megatron_backend.weights.weight_mapping import MappingRow, TensorSplit


@dataclass(frozen=True)
class MappedSlice:
    """A rectangle of one checkpoint tensor.

    Attributes:
        tensor_shape: Shape of the tensor.
        start, size: The rectangle in the tensor.
        local_start: Offset in the rank's parameter.
    """

    name: str
    tensor_shape: tuple[int, ...]
    start: tuple[int, ...]
    size: tuple[int, ...]
    local_start: tuple[int, ...]

    def with_name(self, name: str) -> "MappedSlice":
        """Return the same rectangle of another tensor."""
        return MappedSlice(name, self.tensor_shape, self.start, self.size, self.local_start)

    @property
    def local_index(self) -> tuple[slice, ...]:
        """Index of the rectangle in the rank's parameter."""
        return tuple(slice(at, at + size) for at, size in zip(self.local_start, self.size, strict=True))


def mapped_slices(
    row: MappingRow, sizes: dict[str, int], shape: ModelArchitecture, layout: ParallelLayout
) -> tuple[MappedSlice, ...]:
    """Return the slices of this rank's parameter, in their order in it, with the names of the row."""
    shapes = [tuple(sizes[word] for word in tensor.sizes) for tensor in row.tensors]
    names = [tensor.name for tensor in row.tensors]
    ranks, rank = layout.tensor, layout.tensor_rank
    if row.split is TensorSplit.WHOLE:
        return (_row_slice(names[0], shapes[0], 0, 0, shapes[0][0]),)
    if row.split is TensorSplit.ROW:
        full_shape = shapes[0]
        share = full_shape[1] // ranks
        return (MappedSlice(names[0], full_shape, (0, rank * share), (full_shape[0], share), (0, 0)),)
    if row.split is TensorSplit.VOCABULARY:
        share = -(-shapes[0][0] // ranks)
        start = min(rank * share, shapes[0][0])
        rows = min(share, shapes[0][0] - start)
        return (_row_slice(names[0], shapes[0], start, 0, rows),) if rows else ()
    if row.split is TensorSplit.QKV:
        return tuple(_qkv_slices(names, shapes, shape, layout))
    parts, offset = [], 0
    for name, full_shape in zip(names, shapes, strict=True):
        share = full_shape[0] // ranks
        parts.append(_row_slice(name, full_shape, rank * share, offset, share))
        offset += share
    return tuple(parts)


def local_shape(row: MappingRow, sizes: dict[str, int], layout: ParallelLayout) -> tuple[int, ...]:
    """Return the shape of this rank's parameter, the padding of a vocabulary included."""
    shapes = [tuple(sizes[word] for word in tensor.sizes) for tensor in row.tensors]
    rest = shapes[0][1:]
    if row.split is TensorSplit.WHOLE:
        return shapes[0]
    if row.split is TensorSplit.ROW:
        return (shapes[0][0], shapes[0][1] // layout.tensor)
    return (sum(-(-full_shape[0] // layout.tensor) for full_shape in shapes), *rest)


def _qkv_slices(
    names: list[str], shapes: list[tuple[int, ...]], shape: ModelArchitecture, layout: ParallelLayout
) -> list[MappedSlice]:
    groups = shape.kv_heads // layout.tensor
    rows = (shape.heads // shape.kv_heads * shape.head_size, shape.head_size, shape.head_size)
    parts, offset = [], 0
    for group in range(layout.tensor_rank * groups, (layout.tensor_rank + 1) * groups):
        for name, full_shape, count in zip(names, shapes, rows, strict=True):
            parts.append(_row_slice(name, full_shape, group * count, offset, count))
            offset += count
    return parts


def _row_slice(name: str, full_shape: tuple[int, ...], start: int, offset: int, rows: int) -> MappedSlice:
    """Return a slice of complete rows."""
    zeros = (0,) * (len(full_shape) - 1)
    return MappedSlice(name, full_shape, (start, *zeros), (rows, *full_shape[1:]), (offset, *zeros))
