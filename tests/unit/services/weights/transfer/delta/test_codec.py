"""Delta encoding: restores the new bits exactly, and is small when little changed."""

import struct
from contextlib import suppress

import numpy as np
import pyarrow
import pytest
import torch
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kubealign_services.weights.transfer.delta.codec import BadDelta, apply_delta, check_delta, encode_delta

pytestmark = pytest.mark.timeout(60)

DTYPES = [torch.bfloat16, torch.float32, torch.float16]
BLOCK = 1 << 16


def bits(tensor: Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def applied(old: bytes, delta: bytes, itemsize: int) -> bytes:
    state = bytearray(old)
    apply_delta(memoryview(state), memoryview(delta), itemsize)
    return bytes(state)


def sealed(rest: bytes) -> bytes:
    """Prefix a correct checksum, so that the contents are parsed."""
    return struct.pack("<Q", xxhash.xxh3_64_intdigest(rest)) + rest


def packed(counts: list[int], planes: list[int]) -> bytes:
    """Build changes according to the layout, without the encoder."""
    compressed = pyarrow.Codec("zstd").compress(bytes(planes), asbytes=True)
    return sealed(b"\0" + struct.pack(f"<{len(counts)}I", *counts) + compressed)


@settings(deadline=None, max_examples=80)
@given(
    st.sampled_from(DTYPES),
    st.one_of(
        st.integers(0, 200_000),
        st.builds(lambda blocks, off: max(0, blocks * BLOCK + off), st.integers(0, 3), st.integers(-5, 5)),
    ),
    st.sampled_from([0.0, 1e-4, 0.05, 0.24, 0.7, 1.0]),
    st.booleans(),
    st.integers(0, 2**31),
)
def test_round_trip_restores_bits(
    dtype: torch.dtype, count: int, share: float, small: bool, seed: int
) -> None:
    """small: changes of one unit in the last place; otherwise any bits, including NaN, infinities and -0."""
    generator = np.random.default_rng(seed)
    unsigned = np.uint16 if dtype.itemsize == 2 else np.uint32
    top = 1 << 8 * dtype.itemsize
    old = generator.integers(0, top, count, unsigned)
    changed = generator.random(count) < share
    step = generator.choice([1, top - 1], count).astype(unsigned)
    new = np.where(changed, old + step if small else generator.integers(0, top, count, unsigned), old)
    new = new.astype(unsigned)
    delta = encode_delta(old.tobytes(), new.tobytes(), dtype.itemsize)
    assert applied(old.tobytes(), delta, dtype.itemsize) == new.tobytes()


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from([2, 4]),
    st.lists(st.tuples(st.integers(0, 2 * BLOCK + 6), st.integers(1, 2**32 - 1)), max_size=6),
)
def test_single_changes_keep_their_position(itemsize: int, moves: list[tuple[int, int]]) -> None:
    """A few changes anywhere, including the last element and the ends of blocks."""
    unsigned = np.uint16 if itemsize == 2 else np.uint32
    old = np.zeros(2 * BLOCK + 7, unsigned)
    new = old.copy()
    for index, value in moves:
        new[index] = value % (1 << 8 * itemsize)
    delta = encode_delta(old.tobytes(), new.tobytes(), itemsize)
    assert applied(old.tobytes(), delta, itemsize) == new.tobytes()
    assert len(delta) < 8 + 1 + 3 * 4 + 60


@pytest.mark.parametrize("dtype", DTYPES)
def test_special_values_round_trip(dtype: torch.dtype) -> None:
    old = torch.tensor([0.0, -0.0, 1.0, float("nan"), float("inf"), 2.0], dtype=dtype)
    new = torch.tensor([-0.0, 0.0, float("nan"), float("nan"), -float("inf"), 2.0], dtype=dtype)
    delta = encode_delta(bits(old), bits(new), dtype.itemsize)
    assert applied(bits(old), delta, dtype.itemsize) == bits(new)


def test_layout_by_hand() -> None:
    """Elements 1 and 3 of a hundred change, by +1 and -1: gaps 1 and 1, zigzag 2 and 1."""
    old = np.arange(100, dtype=np.uint16)
    new = old.copy()
    new[1], new[3] = 2, 2
    delta = encode_delta(old.tobytes(), new.tobytes(), 2)
    plain = pyarrow.Codec("zstd").decompress(delta[13:], 8, asbytes=True)
    assert struct.unpack("<BI", delta[8:13]) == (0, 2)
    # Low bytes of both gaps, high bytes; low bytes of both changes, high bytes.
    assert plain == bytes([1, 1, 0, 0, 2, 1, 0, 0])
    assert delta == sealed(delta[8:])
    assert encode_delta(old.tobytes(), old.tobytes(), 2) == sealed(bytes(5))
    assert applied(old.tobytes(), packed([2], list(plain)), 2) == new.tobytes()


def test_layout_of_four_bytes_by_hand() -> None:
    """Element 300 of 301 moves by -0x01020304: zigzag 2 * 0x01020304 - 1."""
    old = np.zeros(301, np.uint32)
    new = old.copy()
    new[300] = (1 << 32) - 0x01020304
    delta = encode_delta(old.tobytes(), new.tobytes(), 4)
    plain = pyarrow.Codec("zstd").decompress(delta[13:], 6, asbytes=True)
    # The gap is 300 = 0x012C; then the zigzag's four bytes, the lowest first.
    assert plain == bytes([0x2C, 0x01, 0x07, 0x06, 0x04, 0x02])
    assert applied(old.tobytes(), packed([1], list(plain)), 4) == new.tobytes()


def test_delta_of_a_small_step_is_small() -> None:
    """A twentieth of the weights changes by one unit in the last place: the delta is far below the dense
    size.
    """
    generator = np.random.default_rng(1)
    old = generator.integers(0, 1 << 16, 1 << 20, np.uint16)
    changed = generator.random(old.size) < 0.05
    new = np.where(changed, old + generator.choice([1, (1 << 16) - 1], old.size).astype(np.uint16), old)
    share = len(encode_delta(old.tobytes(), new.tobytes(), 2)) / old.nbytes
    # A change takes log2(20) + ... bits for its place and one for its sign: 0.05 x 6.7 bits of 16.
    assert 0.02 < share < 0.045, share


def test_dense_changes_store_the_new_state() -> None:
    old = np.zeros(1 << 21, np.uint16)
    new = np.where(np.arange(old.size) % 2, 1, 0).astype(np.uint16)
    delta = encode_delta(old.tobytes(), new.tobytes(), 2)
    assert delta == sealed(b"\1" + new.tobytes())
    assert applied(old.tobytes(), delta, 2) == new.tobytes()
    # All changes lie in the first thirty-second of the tensor, so the delta is used.
    new[1 << 16 :] = 0
    assert len(encode_delta(old.tobytes(), new.tobytes(), 2)) < 1 << 16
    # The tensor is so small that its delta saves no bytes.
    few = np.arange(3, dtype=np.uint16)
    assert encode_delta(few.tobytes(), few[::-1].tobytes(), 2) == sealed(b"\1" + few[::-1].tobytes())


def test_invalid_bytes_are_refused() -> None:
    old, new = bytes(200), bytes(range(200))
    delta = encode_delta(old, new, 2)
    with pytest.raises(BadDelta, match="3 bytes are too few for a delta"):
        applied(old, delta[:3], 2)
    with pytest.raises(BadDelta, match="the checksum of 210 bytes of changes is wrong"):
        check_delta(sealed(bytes(202))[:-1] + b"x")
    with pytest.raises(BadDelta, match="the kind is 7; it may be 0 or 1"):
        applied(old, sealed(b"\7"), 2)
    with pytest.raises(BadDelta, match="199 bytes cannot replace 200"):
        applied(old, sealed(b"\1" + bytes(199)), 2)
    with pytest.raises(BadDelta, match="2 bytes are too few for the changes of 100 elements"):
        applied(old, sealed(b"\0\0\0"), 2)
    with pytest.raises(BadDelta, match="a block of 65536 elements has 70000 changes"):
        applied(old, packed([70000], []), 2)
    with pytest.raises(BadDelta, match=r"cannot be decompressed|take .* bytes"):
        applied(old, packed([2], [1, 1, 0]), 2)
    with pytest.raises(BadDelta, match=r"cannot be decompressed|take .* bytes"):
        applied(old, packed([1], [1, 0, 1, 0, 9, 9]), 2)
    with pytest.raises(ValueError, match="old state has 100 elements, the new one 99"):
        encode_delta(old, new[:198], 2)
    with pytest.raises(ValueError, match="does not begin at a multiple of 8 bytes"):
        encode_delta(memoryview(bytes(18))[2:], memoryview(bytes(18))[2:], 2)


@pytest.mark.parametrize("itemsize", [2, 4])
def test_change_beyond_the_piece_is_never_written(itemsize: int) -> None:
    """The bytes after the piece belong to another piece and stay unchanged."""
    state = bytearray(8 * 16)
    piece = memoryview(state)[:64]
    elements = 64 // itemsize
    high = [0] * (itemsize - 1)
    good = packed([1], [elements - 1, 0, 2, *high])
    apply_delta(piece, memoryview(good), itemsize)
    assert state[64 - itemsize] == 1
    with pytest.raises(BadDelta, match=f"a change of element {elements}, beyond its block"):
        apply_delta(piece, memoryview(packed([1], [elements, 0, 2, *high])), itemsize)
    with pytest.raises(BadDelta, match="a change of element"):
        apply_delta(piece, memoryview(packed([1], [255, 255, 2, *high])), itemsize)
    assert bytes(state[64:]) == bytes(64)


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_corrupt_deltas_never_crash_or_write_outside(data: st.DataObject) -> None:
    """Flipped bits and cut ends behind a correct checksum: refused, or decoded into some state."""
    itemsize = data.draw(st.sampled_from([2, 4]))
    unsigned = np.uint16 if itemsize == 2 else np.uint32
    old = np.arange(BLOCK + 40, dtype=unsigned)
    first, apart = data.draw(st.integers(1, 50)), data.draw(st.sampled_from([7, 40, 4096]))
    places = np.arange(old.size)
    new = np.where((places >= first) & (places % apart == 0), old + 1, old).astype(unsigned)
    rest = bytearray(encode_delta(old.tobytes(), new.tobytes(), itemsize)[8:])
    for _ in range(data.draw(st.integers(0, 4))):
        index = data.draw(st.one_of(st.integers(0, len(rest) - 1), st.integers(0, min(40, len(rest) - 1))))
        rest[index] ^= 1 << data.draw(st.integers(0, 7))
    harmed = bytes(rest[: data.draw(st.integers(max(0, len(rest) - 20), len(rest)))])
    around = bytearray(64 + old.nbytes + 64)
    around[64:-64] = old.tobytes()
    with suppress(BadDelta):
        apply_delta(memoryview(around)[64:-64], memoryview(sealed(harmed)), itemsize)
    assert bytes(around[:64]) == bytes(64) and bytes(around[-64:]) == bytes(64)
