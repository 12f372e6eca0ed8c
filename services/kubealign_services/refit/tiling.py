"""Rectangular pieces of tensors: what two have in common, and whether some are exactly one whole. Pure."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Box:
    """A piece of a tensor: where it begins in each dimension, and how far it reaches. () and () are a
    scalar's."""

    start: tuple[int, ...]
    shape: tuple[int, ...]

    @classmethod
    def whole(cls, shape: Sequence[int]) -> "Box":
        return cls((0,) * len(shape), tuple(shape))

    @property
    def end(self) -> tuple[int, ...]:
        return tuple(start + length for start, length in zip(self.start, self.shape, strict=True))

    @property
    def size(self) -> int:
        """Elements."""
        return math.prod(self.shape)

    def common(self, other: "Box") -> "Box | None":
        """What lies in both; None: nothing does. Raises ValueError for another number of dimensions."""
        start = tuple(map(max, zip(self.start, other.start, strict=True)))
        end = map(min, zip(self.end, other.end, strict=True))
        shape = tuple(last - first for first, last in zip(start, end, strict=True))
        return Box(start, shape) if all(length > 0 for length in shape) else None

    def within(self, outer: "Box") -> tuple[slice, ...]:
        """The index that picks this piece out of a tensor that holds `outer`."""
        return tuple(
            slice(first - base, last - base)
            for first, last, base in zip(self.start, self.end, outer.start, strict=True)
        )

    def __str__(self) -> str:
        return "[" + ", ".join(f"{a}:{b}" for a, b in zip(self.start, self.end, strict=True)) + "]"


def overlap(boxes: Sequence[Box]) -> tuple[int, int] | None:
    """Places of two boxes that have something in common; None: no two have."""
    order = sorted(range(len(boxes)), key=lambda place: boxes[place].start)
    axis = _only_axis(boxes)
    if axis is not None:
        # Alike but along one dimension: neighbours say it all.
        order = sorted((p for p in order if boxes[p].size), key=lambda place: boxes[place].start[axis])
        pairs = list(pairwise(order))
    else:
        pairs = [(first, second) for i, first in enumerate(order) for second in order[i + 1 :]]
    return next((pair for pair in pairs if boxes[pair[0]].common(boxes[pair[1]]) is not None), None)


def uncovered(whole: Box, boxes: Sequence[Box]) -> Box | None:
    """A part of the whole that lies in none of the boxes; None: they cover it."""
    left = [whole] if whole.size else []
    for box in boxes:
        left = [rest for piece in left for rest in _without(piece, box)]
    return min(left, key=lambda piece: piece.start, default=None)


def _only_axis(boxes: Sequence[Box]) -> int | None:
    """The only dimension in which the boxes differ; None: there are several, or there is none."""
    axes = [
        axis
        for axis in range(len(boxes[0].shape) if boxes else 0)
        if len({(box.start[axis], box.shape[axis]) for box in boxes}) > 1
    ]
    return axes[0] if len(axes) == 1 else None


def _without(piece: Box, taken: Box) -> Iterator[Box]:
    """Disjoint pieces that are what `taken` leaves of `piece`."""
    shared = piece.common(taken)
    if shared is None:
        yield piece
        return
    start, end = list(piece.start), list(piece.end)
    for axis, (first, last) in enumerate(zip(shared.start, shared.end, strict=True)):
        for a, b in ((start[axis], first), (last, end[axis])):
            if a < b:
                corner, far = [*start], [*end]
                corner[axis], far[axis] = a, b
                yield Box(tuple(corner), tuple(y - x for x, y in zip(corner, far, strict=True)))
        start[axis], end[axis] = first, last
