"""Pieces copied into a snapshot: converted like torch does, with the checksum of the written bytes."""

import numpy as np
import pytest
import torch
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from kubealign.v1 import refit_pb2
from kubealign_services.weights.announce.manifest import CorruptTransfer
from kubealign_services.weights.send import piece_copy
from kubealign_services.weights.send.piece_copy import copy_tensor
from kubealign_services.weights.verify import checksum as checking
from kubealign_services.weights.verify.checksum import verify_checksums
from kubealign_services.weights.verify.copy_with_checksum import (
    Bytes,
    copy_with_checksum,
    narrow_with_checksum,
)

pytestmark = pytest.mark.timeout(60)

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


class Memory:
    """The first `mapped_bytes` are mapped, the others are written."""

    def __init__(self, size: int, mapped_bytes: int) -> None:
        self.data: Bytes = torch.full((size,), 255, dtype=torch.uint8).numpy()
        self._mapped_bytes = mapped_bytes

    def mapped_view(self, offset: int, count: int) -> Bytes | None:
        return self.data[offset : offset + count] if offset + count <= self._mapped_bytes else None

    def write_at(self, data: memoryview, offset: int) -> None:
        self.data[offset : offset + len(data)] = memoryview(data)


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(DTYPES),
    st.sampled_from(DTYPES),
    st.sampled_from([0, 1, 31, 1000, 32704, 32705, 70_001]),
    st.booleans(),
    st.sampled_from([0, 100_000, 1 << 30]),
    st.sampled_from([64, 4096, 1 << 20]),
    st.integers(0, 2**31),
)
def test_bytes_equal_torchs_conversion(
    given_in: torch.dtype,
    target_dtype: torch.dtype,
    count: int,
    is_strided: bool,
    mapped_bytes: int,
    stretch: int,
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(2 * count, generator=generator) * 10 ** torch.empty(2 * count).uniform_(
        -30, 4, generator=generator
    )
    source = values.to(given_in)[::2] if is_strided else values[:count].to(given_in)
    expected = source.to(target_dtype).clone(memory_format=torch.contiguous_format).view(torch.uint8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(piece_copy, "_CHUNK_BYTES", stretch)
        memory = Memory(len(expected) + 128, mapped_bytes)
        checksum = copy_tensor(source, target_dtype, memory, 64)
    written = torch.from_numpy(memory.data)
    assert torch.equal(written[64:-64], expected)
    assert bool((written[:64] == 255).all()) and bool((written[-64:] == 255).all())
    assert checksum == xxhash.xxh3_64_hexdigest(expected.numpy().data)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_every_corrupt_piece_is_named_with_any_number_of_threads(
    threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    data = bytearray(range(200)) * 5
    entries = [
        refit_pb2.TensorEntry(
            name=f"t{index}",
            offset_bytes=100 * index,
            size_bytes=13 * index,
            checksum=xxhash.xxh3_64_hexdigest(data[100 * index : 100 * index + 13 * index]),
        )
        for index in range(7)
    ]
    verify_checksums(memoryview(data), entries, "here")
    verify_checksums(memoryview(data), [], "here")
    for index in (2, 6):
        data[100 * index] ^= 1
    with pytest.raises(CorruptTransfer, match=r"2 of 7 tensors from here have the wrong checksum: t2, t6$"):
        verify_checksums(memoryview(data), entries, "here")


@given(st.lists(st.integers(0, 1000), max_size=40), st.integers(1, 5))
def test_balanced_shares_hold_every_index_once(sizes: list[int], count: int) -> None:
    shares = checking._balance(sizes, count)
    assert sorted(index for share in shares for index in share) == list(range(len(sizes)))
    totals = [sum(sizes[index] for index in share) for share in shares]
    assert max(totals) - min(totals) <= max(sizes, default=0)


@settings(deadline=None, max_examples=200)
@given(
    st.one_of(
        st.integers(0, 5000),
        st.builds(lambda blocks, more: 1024 * blocks + more, st.integers(0, 40), st.integers(0, 130)),
    ),
    st.sampled_from([0, 0, 0, 64, 8, 1]),
    st.integers(0, 70),
    st.integers(0, 2**31),
)
def test_copy_checksum_equals_the_librarys(size: int, to: int, of: int, seed: int) -> None:
    """Lengths around multiples of 64-byte stripes and 1,024-byte blocks, at any alignment."""
    generator = torch.Generator().manual_seed(seed)
    source = torch.randint(0, 256, (of + size,), dtype=torch.uint8, generator=generator).numpy()[of:]
    memory = torch.full((to + size + 64,), 255, dtype=torch.uint8).numpy()
    expected = xxhash.xxh3_64_hexdigest(source.data)
    assert copy_with_checksum(memory[to : to + size], source) == expected
    assert (memory[to : to + size] == source).all()
    assert (memory[:to] == 255).all() and (memory[to + size :] == 255).all()


def test_narrowing_rounds_to_even_and_keeps_nan() -> None:
    cases = {
        0x3F80_7FFF: 0x3F80,  # less than half: down
        0x3F80_8000: 0x3F80,  # half, even below: down
        0x3F81_8000: 0x3F82,  # half, odd below: up
        0x3F80_8001: 0x3F81,  # more than half: up
        0x7F7F_FFFF: 0x7F80,  # the largest float32 rounds to infinity
        0xFF80_0000: 0xFF80,  # minus infinity
        0x7FFF_FFFF: 0x7FC0,  # a NaN that rounding would carry into minus zero
        0xFFFF_FFFF: 0x7FC0,
        0x7F80_0001: 0x7FC0,  # a NaN that cutting off would make infinity
        0x8000_0000: 0x8000,  # minus zero
        0x0000_8001: 0x0001,  # among the subnormal numbers
    }
    for count in (len(cases), 40 * len(cases)):  # more values than one vector holds
        bits = np.resize(np.array(list(cases), np.uint32), count)
        memory = torch.empty(2 * count, dtype=torch.uint8).numpy()
        checksum = narrow_with_checksum(memory, bits.view(np.float32))
        expected = np.resize(np.array(list(cases.values()), np.uint16), count)
        assert [hex(one) for one in memory.view(np.uint16)] == [hex(one) for one in expected]
        assert checksum == xxhash.xxh3_64_hexdigest(memory.data)


@settings(deadline=None, max_examples=100)
@given(
    st.one_of(st.integers(0, 3000), st.integers(2**17 - 2, 2**17 + 2)),
    st.sampled_from([0, 64, 2]),
    st.integers(0, 2**31),
)
def test_narrowing_equals_torch_and_the_librarys_checksum(count: int, to: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    source = torch.randn(count, generator=generator) * 10 ** torch.empty(count).uniform_(
        -44, 38, generator=generator
    )
    memory = torch.full((to + 2 * count + 64,), 255, dtype=torch.uint8).numpy()
    checksum = narrow_with_checksum(memory[to : to + 2 * count], source.numpy())
    expected = source.to(torch.bfloat16).view(torch.uint8).numpy() if count else np.empty(0, np.uint8)
    assert (memory[to : to + 2 * count] == expected).all()
    assert checksum == xxhash.xxh3_64_hexdigest(expected.tobytes())
    assert (memory[:to] == 255).all() and (memory[to + 2 * count :] == 255).all()
