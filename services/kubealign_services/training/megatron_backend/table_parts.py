"""Rectangles: which part of a checkpoint's tensor stands where in a rank's parameter. Pure arithmetic.

All rearrangement between megatron-core and Hugging Face is such copying of rectangles, so it holds for
weights, for an optimiser's moments and for adapters alike.
"""

from dataclasses import dataclass

from kubealign_services.training.megatron_backend.families import Shape
from kubealign_services.training.megatron_backend.layout import Layout
from kubealign_services.training.megatron_backend.table import Row, Split


@dataclass(frozen=True)
class Part:
    """A rectangle of one tensor of the checkpoint. whole: the tensor's shape. start, size: of the rectangle
    in it. at: where it begins in the rank's parameter."""

    name: str
    whole: tuple[int, ...]
    start: tuple[int, ...]
    size: tuple[int, ...]
    at: tuple[int, ...]

    def named(self, name: str) -> "Part":
        """The same of another tensor."""
        return Part(name, self.whole, self.start, self.size, self.at)

    @property
    def inside(self) -> tuple[slice, ...]:
        """Where it is in the rank's parameter."""
        return tuple(slice(at, at + size) for at, size in zip(self.at, self.size, strict=True))


def parts_of(row: Row, sizes: dict[str, int], shape: Shape, layout: Layout) -> tuple[Part, ...]:
    """The parts of this rank's parameter, in the order in which they stand in it. Names are the row's."""
    wholes = [tuple(sizes[word] for word in tensor.sizes) for tensor in row.tensors]
    names = [tensor.name for tensor in row.tensors]
    ranks, rank = layout.tensor, layout.tensor_rank
    if row.split is Split.WHOLE:
        return (_part(names[0], wholes[0], 0, 0, wholes[0][0]),)
    if row.split is Split.ROW:
        whole = wholes[0]
        each = whole[1] // ranks
        return (Part(names[0], whole, (0, rank * each), (whole[0], each), (0, 0)),)
    if row.split is Split.VOCABULARY:
        each = -(-wholes[0][0] // ranks)
        start = min(rank * each, wholes[0][0])
        rows = min(each, wholes[0][0] - start)
        return (_part(names[0], wholes[0], start, 0, rows),) if rows else ()
    if row.split is Split.QKV:
        return tuple(_qkv(names, wholes, shape, layout))
    parts, at = [], 0
    for name, whole in zip(names, wholes, strict=True):
        each = whole[0] // ranks
        parts.append(_part(name, whole, rank * each, at, each))
        at += each
    return tuple(parts)


def local_shape(row: Row, sizes: dict[str, int], layout: Layout) -> tuple[int, ...]:
    """Of this rank's parameter, the padding of a vocabulary included."""
    wholes = [tuple(sizes[word] for word in tensor.sizes) for tensor in row.tensors]
    rest = wholes[0][1:]
    if row.split is Split.WHOLE:
        return wholes[0]
    if row.split is Split.ROW:
        return (wholes[0][0], wholes[0][1] // layout.tensor)
    return (sum(-(-whole[0] // layout.tensor) for whole in wholes), *rest)


def _qkv(names: list[str], wholes: list[tuple[int, ...]], shape: Shape, layout: Layout) -> list[Part]:
    groups = shape.groups // layout.tensor
    rows = (shape.heads // shape.groups * shape.head_size, shape.head_size, shape.head_size)
    parts, at = [], 0
    for group in range(layout.tensor_rank * groups, (layout.tensor_rank + 1) * groups):
        for name, whole, count in zip(names, wholes, rows, strict=True):
            parts.append(_part(name, whole, group * count, at, count))
            at += count
    return parts


def _part(name: str, whole: tuple[int, ...], start: int, at: int, rows: int) -> Part:
    """Whole rows."""
    none = (0,) * (len(whole) - 1)
    return Part(name, whole, (start, *none), (rows, *whole[1:]), (at, *none))
