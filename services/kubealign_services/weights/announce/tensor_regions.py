"""Rectangular pieces of tensors: intersections, and checks that pieces tile a tensor exactly. Pure."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Box:
    """A rectangular piece of a tensor: its start and length in each dimension. A scalar has () and ()."""

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
        """Number of elements."""
        return math.prod(self.shape)

    def intersection(self, other: "Box") -> "Box | None":
        """Return the intersection, or None when it is empty.

        Raises ValueError for different numbers of dimensions.
        """
        start = tuple(map(max, zip(self.start, other.start, strict=True)))
        end = map(min, zip(self.end, other.end, strict=True))
        shape = tuple(last - first for first, last in zip(start, end, strict=True))
        return Box(start, shape) if all(length > 0 for length in shape) else None

    def slices_in(self, outer: "Box") -> tuple[slice, ...]:
        """Return the index that selects this piece from a tensor that holds `outer`."""
        return tuple(
            slice(first - base, last - base)
            for first, last, base in zip(self.start, self.end, outer.start, strict=True)
        )

    def __str__(self) -> str:
        return "[" + ", ".join(f"{a}:{b}" for a, b in zip(self.start, self.end, strict=True)) + "]"


def find_overlap(boxes: Sequence[Box]) -> tuple[int, int] | None:
    """Return the indices of two boxes that overlap, or None."""
    order = sorted(range(len(boxes)), key=lambda index: boxes[index].start)
    axis = _single_differing_axis(boxes)
    if axis is not None:
        # The boxes differ in one dimension only: comparing neighbours suffices.
        order = sorted((p for p in order if boxes[p].size), key=lambda index: boxes[index].start[axis])
        pairs = list(pairwise(order))
    else:
        pairs = [(first, second) for i, first in enumerate(order) for second in order[i + 1 :]]
    return next((pair for pair in pairs if boxes[pair[0]].intersection(boxes[pair[1]]) is not None), None)


def find_uncovered(whole: Box, boxes: Sequence[Box]) -> Box | None:
    """Return a part of `whole` that no box covers, or None."""
    left = [whole] if whole.size else []
    for box in boxes:
        left = [rest for piece in left for rest in _subtract(piece, box)]
    return min(left, key=lambda piece: piece.start, default=None)


def _single_differing_axis(boxes: Sequence[Box]) -> int | None:
    """Return the only dimension in which the boxes differ; None when there are several or none."""
    axes = [
        axis
        for axis in range(len(boxes[0].shape) if boxes else 0)
        if len({(box.start[axis], box.shape[axis]) for box in boxes}) > 1
    ]
    return axes[0] if len(axes) == 1 else None


def _subtract(piece: Box, taken: Box) -> Iterator[Box]:
    """Yield disjoint boxes that cover `piece` without `taken`."""
    shared = piece.intersection(taken)
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
