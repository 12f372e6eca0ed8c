"""Transfer plan of a receiver: the pieces it needs of each part, and their positions in the assembled ranges.
Pure.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kubealign.v1 import refit_pb2
from kubealign_services.refit.manifest import box_of, whole_shape
from kubealign_services.refit.tiling import Box

#: (name, full shape) -> the ranges of the tensor that the receiver needs, in its order; may be empty.
Wanted = Callable[[str, tuple[int, ...]], Sequence[Box]]


@dataclass(frozen=True)
class Copy:
    """Contribution of one piece to a range.

    part, entry: indices in the announcement. source, target: slices of the piece and of the range.
    """

    part: int
    entry: int
    source: tuple[slice, ...]
    target: tuple[slice, ...]


@dataclass(frozen=True)
class Assembly:
    """One range of one tensor, and the copies that fill it."""

    name: str
    whole_shape: tuple[int, ...]
    dtype: str
    box: Box
    copies: tuple[Copy, ...]


@dataclass(frozen=True)
class Plan:
    """assemblies: in the order of the manifest. needed: index of a part -> indices of its needed pieces,
    ascending; parts of which nothing is needed are omitted.
    """

    assemblies: tuple[Assembly, ...]
    needed: dict[int, tuple[int, ...]]


def plan(announcement: refit_pb2.WeightsAnnouncement, wanted: Wanted | None = None) -> Plan:
    """Plan the transfer of an announcement that passes `check_announcement`.

    Args:
        select_ranges: Ranges to fetch; None for all tensors completely.

    Raises:
        ValueError: A range reaches beyond its tensor, or has another number of dimensions.
    """
    pieces_by_name: dict[str, list[tuple[int, int, refit_pb2.TensorEntry]]] = {}
    for part, contents in enumerate(announcement.parts):
        for index, entry in enumerate(contents.tensors):
            pieces_by_name.setdefault(entry.name, []).append((part, index, entry))
    assemblies = []
    needed: dict[int, set[int]] = {}
    for name, pieces in pieces_by_name.items():
        shape = whole_shape(pieces[0][2])
        if wanted is None and len(pieces) == 1 and pieces[0][2].size_bytes:
            (part, index, entry) = pieces[0]
            everything = tuple(slice(0, length) for length in shape)
            copy = Copy(part, index, everything, everything)
            needed.setdefault(part, set()).add(index)
            assemblies.append(Assembly(name, shape, entry.dtype, Box.whole(shape), (copy,)))
            continue
        for box in [Box.whole(shape)] if wanted is None else wanted(name, shape):
            _check(name, shape, box)
            copies = tuple(_copies(pieces, box))
            for copy in copies:
                needed.setdefault(copy.part, set()).add(copy.entry)
            assemblies.append(Assembly(name, shape, pieces[0][2].dtype, box, copies))
    return Plan(tuple(assemblies), {part: tuple(sorted(needed[part])) for part in sorted(needed)})


def _copies(pieces: Sequence[tuple[int, int, refit_pb2.TensorEntry]], box: Box) -> list[Copy]:
    copies = []
    for part, index, entry in pieces:
        piece = box_of(entry)
        shared = piece.common(box)
        if shared is not None:
            copies.append(Copy(part, index, shared.within(piece), shared.within(box)))
    return copies


def _check(name: str, shape: tuple[int, ...], box: Box) -> None:
    if not len(box.start) == len(box.shape) == len(shape):
        raise ValueError(f"requested range of {name}: {box}, but its shape is {list(shape)}")
    if any(first < 0 or last > size for first, last, size in zip(box.start, box.end, shape, strict=True)):
        raise ValueError(f"requested range of {name}: {box}, which reaches beyond its shape {list(shape)}")
