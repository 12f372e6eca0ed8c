"""Pieces that tile tensors, and assembly of arbitrary ranges."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kubealign.v1 import batch_pb2, refit_pb2
from kubealign_services.weights.announce.manifest import (
    BadManifest,
    align_offset,
    check_announcement,
    weights_digest,
)
from kubealign_services.weights.announce.tensor_regions import Box, find_overlap, find_uncovered
from kubealign_services.weights.receive.tensor_assembly import AssembledTensors
from kubealign_services.weights.receive.transfer_plan import plan_transfer

pytestmark = pytest.mark.timeout(60)


@dataclass(frozen=True)
class Piece:
    name: str
    whole_shape: tuple[int, ...]
    box: Box
    rank: int


def announced(
    pieces: list[Piece], tensors: dict[str, Tensor]
) -> tuple[refit_pb2.WeightsAnnouncement, dict[int, memoryview]]:
    """Return an announcement of these pieces, and each part's bytes by its index."""
    parts, snapshots = [], {}
    for index, rank in enumerate(sorted({piece.rank for piece in pieces})):
        data = bytearray()
        part = refit_pb2.WeightsPart(rank=rank)
        for piece in (piece for piece in pieces if piece.rank == rank):
            data += bytes(align_offset(len(data)) - len(data))
            contents = tensors[piece.name][piece.box.slices_in(Box.whole(piece.whole_shape))].contiguous()
            raw = contents.reshape(-1).view(torch.uint8).numpy().tobytes() if contents.numel() else b""
            part.tensors.add(
                name=piece.name,
                shape=contents.shape,
                dtype="F32",
                offset_bytes=len(data),
                size_bytes=len(raw),
                checksum=f"{len(data):016x}",
                start=piece.box.start,
                whole_shape=piece.whole_shape,
            )
            data += raw
        part.size_bytes = len(data)
        parts.append(part)
        snapshots[index] = memoryview(data)
    weights = batch_pb2.WeightsId(fence=1, version=1, digest=weights_digest(parts))
    size = sum(part.size_bytes for part in parts)
    return refit_pb2.WeightsAnnouncement(weights=weights, parts=parts, size_bytes=size), snapshots


@st.composite
def tilings(draw: st.DrawFn) -> tuple[list[Piece], dict[str, tuple[int, ...]], dict[str, list[Box]]]:
    """Tensors cut at random, dimension after dimension and not in a grid, with requested ranges."""
    pieces: list[Piece] = []
    shapes: dict[str, tuple[int, ...]] = {}
    requested: dict[str, list[Box]] = {}
    for index in range(draw(st.integers(1, 3))):
        name = f"t{index}"
        shape = tuple(draw(st.lists(st.integers(0, 7), max_size=3)))
        shapes[name] = shape
        boxes = [Box.whole(shape)]
        for _ in range(draw(st.integers(0, 5)) if shape else 0):
            box = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
            axis = draw(st.integers(0, len(shape) - 1))
            at = draw(st.integers(0, box.shape[axis]))
            far_start, lower, upper = list(box.start), list(box.shape), list(box.shape)
            far_start[axis] += at
            lower[axis], upper[axis] = at, box.shape[axis] - at
            boxes += [Box(box.start, tuple(lower)), Box(tuple(far_start), tuple(upper))]
        pieces += [Piece(name, shape, box, draw(st.integers(0, 3))) for box in boxes]
        requested[name] = []
        for _ in range(draw(st.integers(0, 2))):
            start = tuple(draw(st.integers(0, size)) for size in shape)
            shape_of = tuple(draw(st.integers(0, size - a)) for a, size in zip(start, shape, strict=True))
            requested[name].append(Box(start, shape_of))
    return draw(st.permutations(pieces)), shapes, requested


@settings(deadline=None, max_examples=150)
@given(tilings())
def test_any_range_of_any_tiling_is_assembled(
    tiling: tuple[list[Piece], dict[str, tuple[int, ...]], dict[str, list[Box]]],
) -> None:
    pieces, shapes, requested = tiling
    generator = torch.Generator().manual_seed(1)
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    announcement, snapshots = announced(pieces, tensors)
    check_announcement(announcement)

    assembled_tensors = AssembledTensors(announcement, plan_transfer(announcement), snapshots)
    assembled = dict(assembled_tensors)
    assert assembled.keys() == tensors.keys() and len(assembled_tensors) == len(tensors)
    for name, tensor in tensors.items():
        assert torch.equal(assembled[name], tensor)

    wanted_plan = plan_transfer(announcement, lambda name, shape: requested[name])
    taken: dict[str, list[Tensor]] = {name: [] for name in tensors}
    for piece in AssembledTensors(announcement, wanted_plan, snapshots).slices():
        assert piece.shape == shapes[piece.name]
        assert piece.start == requested[piece.name][len(taken[piece.name])].start
        taken[piece.name].append(piece.tensor)
    for name, boxes in requested.items():
        for box, tensor in zip(boxes, taken[name], strict=True):
            assert torch.equal(tensor, tensors[name][box.slices_in(Box.whole(shapes[name]))])
    # No piece without a requested element is fetched.
    for index, entries in wanted_plan.needed.items():
        for entry in entries:
            name = announcement.parts[index].tensors[entry].name
            contents = announcement.parts[index].tensors[entry]
            box = (
                Box(tuple(contents.start), tuple(contents.shape))
                if contents.start
                else Box.whole(contents.shape)
            )
            assert any(box.intersection(range_) for range_ in requested[name])


@settings(deadline=None, max_examples=80)
@given(tilings(), st.data())
def test_missing_or_duplicate_piece_is_detected(
    tiling: tuple[list[Piece], dict[str, tuple[int, ...]], dict[str, list[Box]]], data: st.DataObject
) -> None:
    pieces, shapes, _ = tiling
    full = [index for index, piece in enumerate(pieces) if piece.box.size]
    if not full:
        return
    chosen = data.draw(st.sampled_from(full))
    tensors = {name: torch.zeros(shape) for name, shape in shapes.items()}
    name = pieces[chosen].name
    rest = pieces[:chosen] + pieces[chosen + 1 :]
    others = [piece.box for piece in rest if piece.name == name]
    missing = find_uncovered(Box.whole(shapes[name]), others)
    assert missing is not None and missing.intersection(pieces[chosen].box) == missing
    assert find_uncovered(Box.whole(shapes[name]), [*others, pieces[chosen].box]) is None
    if any(piece.name == name for piece in rest):
        with pytest.raises(BadManifest, match=rf"^{name}: .* is in no part"):
            check_announcement(announced(rest, tensors)[0])
    with pytest.raises(BadManifest, match=rf"^{name}: .* overlap"):
        check_announcement(announced([*pieces, pieces[chosen]], tensors)[0])


def test_boxes_by_hand() -> None:
    left, right = Box((0, 0), (4, 2)), Box((0, 2), (4, 3))
    below = Box((2, 1), (3, 2))
    assert left.intersection(right) is None
    assert below.intersection(left) == Box((2, 1), (2, 1))
    assert Box((2, 1), (2, 1)).slices_in(below) == (slice(0, 2), slice(0, 1))
    assert str(below) == "[2:5, 1:3]"
    assert find_overlap([left, right]) is None
    assert find_overlap([left, right, below]) == (0, 2)
    assert find_uncovered(Box.whole((4, 5)), [left, right]) is None
    assert find_uncovered(Box.whole((5, 5)), [left, right]) == Box((4, 0), (1, 5))
    middle, beginning = Box((2,), (1,)), Box((0,), (2,))
    assert find_uncovered(Box.whole((6,)), [middle, beginning]) == Box((3,), (3,))
    assert Box.whole(()).intersection(Box.whole(())) == Box((), ())
    assert find_overlap([Box.whole(()), Box.whole(())]) == (0, 1)


def two_halves() -> list[Piece]:
    shape = (4, 3)
    return [Piece("w", shape, Box((0, 0), (2, 3)), 0), Piece("w", shape, Box((2, 0), (2, 3)), 2)]


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda parts: parts[1].tensors[0].start.__setitem__(0, 1), r"w: \[0:2, 0:3\] of rank 0 and \[1:3"),
        (
            lambda parts: parts[1].tensors[0].start.__setitem__(0, 3),
            r"w: \[3:5, 0:3\] of rank 2 reaches beyond the shape \[4, 3\]",
        ),
        (
            lambda parts: parts[1].tensors[0].whole_shape.__setitem__(0, 5),
            r"w: whole_shape is \[4, 3\] at rank 0, \[5, 3\] at 2",
        ),
        (lambda parts: parts[1].tensors[0].start.pop(), "w: start, shape and whole_shape of rank 2 differ"),
        (lambda parts: setattr(parts[1], "rank", 0), r"parts are of the ranks \[0, 0\]"),
    ],
)
def test_pieces_that_do_not_form_a_tensor(
    harm: Callable[[list[refit_pb2.WeightsPart]], object], words: str
) -> None:
    message, _ = announced(two_halves(), {"w": torch.zeros(4, 3)})
    check_announcement(message)
    harm(message.parts)  # type: ignore[arg-type]
    with pytest.raises(BadManifest, match=words):
        check_announcement(message)


def test_missing_piece_is_named_by_its_range() -> None:
    first = two_halves()[0]
    message, _ = announced([first], {"w": torch.zeros(4, 3)})
    with pytest.raises(BadManifest, match=r"w: \[2:4, 0:3\] of \[4, 3\] is in no part"):
        check_announcement(message)


def test_range_within_one_piece_is_a_view() -> None:
    message, snapshots = announced(two_halves(), {"w": torch.arange(12.0).reshape(4, 3)})
    boxes = [Box((2, 1), (1, 2)), Box((1, 0), (2, 3))]
    first, second = AssembledTensors(message, plan_transfer(message, lambda *_: boxes), snapshots).slices()
    assert first.tensor.tolist() == [[7.0, 8.0]] and second.tensor.tolist() == [[3, 4, 5], [6, 7, 8]]
    snapshots[1][4:8] = torch.tensor([-1.0]).numpy().tobytes()
    assert first.tensor[0, 0] == -1.0 and second.tensor[1, 1] == 7.0


def test_range_beyond_the_tensor_is_refused() -> None:
    message, _ = announced(two_halves(), {"w": torch.zeros(4, 3)})
    with pytest.raises(ValueError, match=r"range of w: \[3:5, 0:3\], which reaches beyond its shape"):
        plan_transfer(message, lambda *_: [Box((3, 0), (2, 3))])
    with pytest.raises(ValueError, match=r"requested range of w: \[0:4\], but its shape is \[4, 3\]"):
        plan_transfer(message, lambda *_: [Box((0,), (4,))])
