"""Transfer plan of a receiver: the pieces it needs of each part, and their positions in the assembled ranges.

Pure.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kubealign.v1 import refit_pb2
from kubealign_services.weights.announce.manifest import piece_box, tensor_shape
from kubealign_services.weights.announce.tensor_regions import Box

#: (name, full shape) -> the ranges of the tensor that the receiver needs, in its order; may be empty.
RangeSelector = Callable[[str, tuple[int, ...]], Sequence[Box]]


@dataclass(frozen=True)
class RangeCopy:
    """Contribution of one piece to a range.

    part, entry: indices in the announcement. source, target: slices of the piece and of the range.
    """

    part: int
    entry: int
    source: tuple[slice, ...]
    target: tuple[slice, ...]


@dataclass(frozen=True)
class TensorAssembly:
    """One range of one tensor, and the copies that fill it."""

    name: str
    whole_shape: tuple[int, ...]
    dtype: str
    box: Box
    copies: tuple[RangeCopy, ...]


@dataclass(frozen=True)
class TransferPlan:
    """assemblies: in the order of the manifest. needed: index of a part -> indices of its needed pieces,
    ascending; parts of which nothing is needed are omitted.
    """

    assemblies: tuple[TensorAssembly, ...]
    needed: dict[int, tuple[int, ...]]


def plan_transfer(
    announcement: refit_pb2.WeightsAnnouncement, select_ranges: RangeSelector | None = None
) -> TransferPlan:
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
        shape = tensor_shape(pieces[0][2])
        if select_ranges is None and len(pieces) == 1 and pieces[0][2].size_bytes:
            (part, index, entry) = pieces[0]
            everything = tuple(slice(0, length) for length in shape)
            copy = RangeCopy(part, index, everything, everything)
            needed.setdefault(part, set()).add(index)
            assemblies.append(TensorAssembly(name, shape, entry.dtype, Box.whole(shape), (copy,)))
            continue
        for box in [Box.whole(shape)] if select_ranges is None else select_ranges(name, shape):
            _check_range(name, shape, box)
            copies = tuple(_range_copies(pieces, box))
            for copy in copies:
                needed.setdefault(copy.part, set()).add(copy.entry)
            assemblies.append(TensorAssembly(name, shape, pieces[0][2].dtype, box, copies))
    return TransferPlan(tuple(assemblies), {part: tuple(sorted(needed[part])) for part in sorted(needed)})


def _range_copies(pieces: Sequence[tuple[int, int, refit_pb2.TensorEntry]], box: Box) -> list[RangeCopy]:
    copies = []
    for part, index, entry in pieces:
        piece = piece_box(entry)
        shared = piece.intersection(box)
        if shared is not None:
            copies.append(RangeCopy(part, index, shared.slices_in(piece), shared.slices_in(box)))
    return copies


def _check_range(name: str, shape: tuple[int, ...], box: Box) -> None:
    if not len(box.start) == len(box.shape) == len(shape):
        raise ValueError(f"requested range of {name}: {box}, but its shape is {list(shape)}")
    if any(first < 0 or last > size for first, last, size in zip(box.start, box.end, shape, strict=True)):
        raise ValueError(f"requested range of {name}: {box}, which reaches beyond its shape {list(shape)}")
