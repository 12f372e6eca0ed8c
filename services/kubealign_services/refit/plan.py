"""What a receiver takes of which part, and where it goes. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kubealign.v1 import refit_pb2
from kubealign_services.refit.manifest import box_of, whole_shape
from kubealign_services.refit.tiling import Box

#: (name, whole shape) -> the ranges that this receiver wants of it, in its order; none: nothing of it.
Wanted = Callable[[str, tuple[int, ...]], Sequence[Box]]


@dataclass(frozen=True)
class Copy:
    """What one piece gives to a range. part, entry: places in the announcement. source, target: where it lies
    in the piece and in the range."""

    part: int
    entry: int
    source: tuple[slice, ...]
    target: tuple[slice, ...]


@dataclass(frozen=True)
class Assembly:
    """One range of one tensor, and what it is made of."""

    name: str
    whole_shape: tuple[int, ...]
    dtype: str
    box: Box
    copies: tuple[Copy, ...]


@dataclass(frozen=True)
class Plan:
    """assemblies: in the order of the manifest. needed: place of a part -> places of its pieces, ascending;
    parts of which nothing is needed are left out."""

    assemblies: tuple[Assembly, ...]
    needed: dict[int, tuple[int, ...]]


def plan(announcement: refit_pb2.WeightsAnnouncement, wanted: Wanted | None = None) -> Plan:
    """The announcement is one that `check_announcement` passes. wanted None: every tensor whole.

    Raises ValueError for a range that reaches beyond its tensor, or has other dimensions.
    """
    held: dict[str, list[tuple[int, int, refit_pb2.TensorEntry]]] = {}
    for part, contents in enumerate(announcement.parts):
        for place, entry in enumerate(contents.tensors):
            held.setdefault(entry.name, []).append((part, place, entry))
    assemblies = []
    needed: dict[int, set[int]] = {}
    for name, pieces in held.items():
        shape = whole_shape(pieces[0][2])
        if wanted is None and len(pieces) == 1 and pieces[0][2].size_bytes:
            (part, place, entry) = pieces[0]
            everything = tuple(slice(0, length) for length in shape)
            copy = Copy(part, place, everything, everything)
            needed.setdefault(part, set()).add(place)
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
    for part, place, entry in pieces:
        piece = box_of(entry)
        shared = piece.common(box)
        if shared is not None:
            copies.append(Copy(part, place, shared.within(piece), shared.within(box)))
    return copies


def _check(name: str, shape: tuple[int, ...], box: Box) -> None:
    if not len(box.start) == len(box.shape) == len(shape):
        raise ValueError(f"wanted of {name}: {box}, but its shape is {list(shape)}")
    if any(first < 0 or last > size for first, last, size in zip(box.start, box.end, shape, strict=True)):
        raise ValueError(f"wanted of {name}: {box}, which reaches beyond its shape {list(shape)}")
