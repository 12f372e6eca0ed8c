"""Snapshot layout, worked by hand, and inconsistent announcements."""

from collections.abc import Callable

import pytest
import torch
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from kubealign.spec.sections.precision import Precision
from kubealign.v1 import batch_pb2, refit_pb2
from kubealign_services.weights.announce.manifest import (
    BadManifest,
    CorruptTransfer,
    align_offset,
    check_announcement,
    piece_view,
    weights_digest,
)
from kubealign_services.weights.send.snapshot_file import chunk_ranges
from kubealign_services.weights.verify.canary import Canary, canary_length, mean_logprob_gap
from kubealign_services.weights.verify.checksum import verify_checksums

pytestmark = pytest.mark.timeout(30)


def entry(name: str, shape: list[int], dtype: str, offset: int, data: bytes) -> refit_pb2.TensorEntry:
    return refit_pb2.TensorEntry(
        name=name,
        shape=shape,
        dtype=dtype,
        offset_bytes=offset,
        size_bytes=len(data),
        checksum=xxhash.xxh3_64_hexdigest(data),
    )


# a: 3 x 5 numbers of 4 bytes end at 60; b starts at the next multiple of 64; its 2 x 2 bytes end at 68.
A = torch.arange(15, dtype=torch.float32).numpy().tobytes()
B = bytes([0x80, 0x3F, 0x00, 0xC0])  # bf16: 0x3F80 is 1, 0xC000 is -2
SNAPSHOT = A + bytes(4) + B


def announcement() -> refit_pb2.WeightsAnnouncement:
    tensors = [entry("a", [3, 5], "F32", 0, A), entry("b", [2], "BF16", 64, B)]
    parts = [refit_pb2.WeightsPart(rank=0, tensors=tensors, size_bytes=68)]
    weights = batch_pb2.WeightsId(fence=2, version=7, digest=weights_digest(parts))
    return refit_pb2.WeightsAnnouncement(weights=weights, parts=parts, size_bytes=68)


def test_layout_by_hand() -> None:
    assert [align_offset(offset) for offset in (0, 1, 60, 64, 65)] == [0, 64, 64, 64, 128]
    message = announcement()
    check_announcement(message)
    tensors = message.parts[0].tensors
    verify_checksums(memoryview(SNAPSHOT), tensors, "here")
    views = {entry.name: piece_view(memoryview(bytearray(SNAPSHOT)), entry) for entry in tensors}
    assert torch.equal(views["a"], torch.arange(15, dtype=torch.float32).reshape(3, 5))
    assert torch.equal(views["b"], torch.tensor([1.0, -2.0], dtype=torch.bfloat16))
    checksums = xxhash.xxh3_64_hexdigest(A) + xxhash.xxh3_64_hexdigest(B)
    assert message.weights.digest == xxhash.xxh3_128_hexdigest(checksums.encode())


def change(field: str, value: object, tensor: int = 1) -> Callable[[refit_pb2.WeightsAnnouncement], None]:
    return lambda message: setattr(message.parts[0].tensors[tensor], field, value)


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (change("dtype", "I8"), "b: dtype is 'I8'; it may be F32, BF16, F16"),
        (change("dtype", "F32"), r"b: .*F32 \(2,\) takes 8"),
        (change("offset_bytes", 60), "b: starts at 60, not at 64"),
        (change("checksum", "0" * 16), "the checksums have digest"),
        (lambda message: setattr(message, "size_bytes", 72), "size_bytes is 72; its 2 tensors take 68"),
        (
            lambda message: setattr(message.parts[0], "size_bytes", 72),
            "size_bytes of rank 0 is 72; its 2 tensors end at 68",
        ),
        (lambda message: message.ClearField("parts"), "its 0 tensors take 0"),
        (
            lambda message: message.parts[0].delta_sizes.append(5),
            "delta_sizes of rank 0 has 1 entries for 2 tensors",
        ),
        (lambda message: setattr(message.weights, "digest", "f" * 32), "the checksums have digest"),
    ],
)
def test_inconsistent_announcement_is_refused(
    harm: Callable[[refit_pb2.WeightsAnnouncement], None], words: str
) -> None:
    message = announcement()
    harm(message)
    with pytest.raises(BadManifest, match=words):
        check_announcement(message)


@given(st.integers(0, len(SNAPSHOT) - 1), st.integers(0, 7))
def test_any_flipped_bit_is_detected_and_named(offset: int, bit: int) -> None:
    harmed = bytearray(SNAPSHOT)
    harmed[offset] ^= 1 << bit
    tensors = announcement().parts[0].tensors
    if 60 <= offset < 64:  # padding: part of no tensor
        verify_checksums(memoryview(harmed), tensors, "here")
        return
    with pytest.raises(CorruptTransfer, match=f"1 of 2 tensors from here .*: {'a' if offset < 60 else 'b'}$"):
        verify_checksums(memoryview(harmed), tensors, "here")


def test_adjacent_pieces_share_chunks() -> None:
    sizes = [60, 4, 130, 64]  # offsets 0, 64, 128, 320
    entries = []
    offset = 0
    for index, size in enumerate(sizes):
        entries.append(refit_pb2.TensorEntry(name=str(index), offset_bytes=offset, size_bytes=size))
        offset = align_offset(offset + size)
    assert list(chunk_ranges(entries, 1000)) == [(0, 384)]
    assert list(chunk_ranges(entries, 200)) == [(0, 200), (200, 184)]
    assert list(chunk_ranges([entries[1], entries[3]], 1000)) == [(64, 4), (320, 64)]
    assert list(chunk_ranges([], 1000)) == []


def test_canary_depends_on_the_job() -> None:
    one = Canary.choose(1, 97, [Precision.FLOAT32])
    assert one.tokens == Canary.choose(1, 97, [Precision.FLOAT32]).tokens
    assert one.tokens != Canary.choose(2, 97, [Precision.FLOAT32]).tokens
    assert len(one.tokens) == 16
    assert all(0 <= token < 97 for token in one.tokens)
    assert one.tolerance == 1e-3
    assert Canary.choose(1, 97, [Precision.FLOAT32, Precision.BFLOAT16]).tolerance == 0.4
    assert Canary.choose(1, 97, [Precision.FLOAT32], external_engine=True).tolerance == 0.05
    message = one.to_proto([-1.0] * 15)
    assert list(message.tokens) == one.tokens
    assert message.tolerance == pytest.approx(1e-3)
    with pytest.raises(ValueError, match="16 log-probabilities for 16"):
        one.to_proto([-1.0] * 16)
    with pytest.raises(ValueError, match="canary"):
        Canary.choose(1, 0, [Precision.FLOAT32])


@pytest.mark.parametrize(
    ("context", "length"),
    [(None, 64), (8192, 64), (128, 64), (127, 48), (64, 32), (50, 16), (32, 16), (16, 16)],
)
def test_canary_is_as_long_as_the_context_allows(context: int | None, length: int) -> None:
    assert canary_length(context) == length
    # A longer canary of a job begins with its shorter one.
    shortest = Canary.choose(1, 97, [Precision.FLOAT32]).tokens
    assert Canary.choose(1, 97, [Precision.FLOAT32], length).tokens[:16] == shortest


def test_gap_is_infinite_without_comparable_values() -> None:
    assert mean_logprob_gap([-1.0, -2.0], [-1.5, -2.25]) == 0.375
    assert mean_logprob_gap([-1.0], [float("nan")]) == float("inf")
    assert mean_logprob_gap([float("-inf")], [float("-inf")]) == float("inf")
    assert mean_logprob_gap([-1.0], [-1.0, -1.0]) == float("inf")
