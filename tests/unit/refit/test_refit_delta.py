"""A delta makes the new bits of the old, whatever they are, and is small when little changed."""

import struct

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from kubealign_services.refit.delta import BadDelta, apply, encode

pytestmark = pytest.mark.timeout(60)

DTYPES = [torch.bfloat16, torch.float32, torch.float16]


def bits(tensor: Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def applied(old: bytes, delta: bytes, itemsize: int) -> bytes:
    state = bytearray(old)
    apply(memoryview(state), memoryview(delta), itemsize)
    return bytes(state)


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(DTYPES),
    st.integers(0, 200_000),
    st.sampled_from([0.0, 1e-4, 0.05, 0.7, 1.0]),
    st.booleans(),
    st.integers(0, 2**31),
)
def test_the_bits_come_back(dtype: torch.dtype, count: int, share: float, small: bool, seed: int) -> None:
    """small: by one unit in the last place; else to any bits, among them NaN, infinities and -0."""
    generator = np.random.default_rng(seed)
    unsigned = np.uint16 if dtype.itemsize == 2 else np.uint32
    top = 1 << 8 * dtype.itemsize
    old = generator.integers(0, top, count, unsigned)
    changed = generator.random(count) < share
    step = generator.choice([1, top - 1], count).astype(unsigned)
    new = np.where(changed, old + step if small else generator.integers(0, top, count, unsigned), old)
    delta = encode(old.tobytes(), new.astype(unsigned).tobytes(), dtype.itemsize)
    assert applied(old.tobytes(), delta, dtype.itemsize) == new.astype(unsigned).tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
def test_special_values_are_bits_like_others(dtype: torch.dtype) -> None:
    old = torch.tensor([0.0, -0.0, 1.0, float("nan"), float("inf"), 2.0], dtype=dtype)
    new = torch.tensor([-0.0, 0.0, float("nan"), float("nan"), -float("inf"), 2.0], dtype=dtype)
    delta = encode(bits(old), bits(new), dtype.itemsize)
    assert applied(bits(old), delta, dtype.itemsize) == bits(new)


def test_the_layout_by_hand() -> None:
    """Elements 1 and 3 of five change, by +1 and -1: gaps 1 and 1, zigzag 2 and 1."""
    old = np.array([10, 20, 30, 40, 50], np.uint16)
    new = np.array([10, 21, 30, 39, 50], np.uint16)
    delta = encode(old.tobytes(), new.tobytes(), 2)
    import pyarrow

    plain = pyarrow.Codec("zstd").decompress(delta[4:], 8, asbytes=True)
    assert struct.unpack("<I", delta[:4]) == (2,)
    # Low bytes of both gaps, high bytes; low bytes of both changes, high bytes.
    assert plain == bytes([1, 1, 0, 0, 2, 1, 0, 0])
    assert encode(old.tobytes(), old.tobytes(), 2) == bytes(4)


def test_what_one_small_step_changes_takes_few_bytes() -> None:
    """A twentieth of the weights by one unit in the last place: far below the dense size, above what
    changed."""
    generator = np.random.default_rng(1)
    old = generator.integers(0, 1 << 16, 1 << 20, np.uint16)
    changed = generator.random(old.size) < 0.05
    new = np.where(changed, old + generator.choice([1, (1 << 16) - 1], old.size).astype(np.uint16), old)
    share = len(encode(old.tobytes(), new.tobytes(), 2)) / old.nbytes
    # A change takes log2(20) + ... bits for its place and one for its sign: 0.05 x 6.7 bits of 16.
    assert 0.02 < share < 0.045, share


def test_bytes_that_are_no_delta_are_refused() -> None:
    old, new = bytes(200), bytes(range(200))
    delta = encode(old, new, 2)
    with pytest.raises(BadDelta, match="3 bytes are no delta of 100 elements"):
        applied(old, delta[:3], 2)
    with pytest.raises(BadDelta, match="changes"):
        applied(old, delta[:-3], 2)
    with pytest.raises(BadDelta, match="a block of 65536 elements has 70000 changes"):
        applied(old, struct.pack("<I", 70000) + delta[4:], 2)
    with pytest.raises(BadDelta, match="a change of element"):
        applied(old[:50], delta, 2)
    with pytest.raises(ValueError, match="100 elements cannot become 99"):
        encode(old, new[:198], 2)
