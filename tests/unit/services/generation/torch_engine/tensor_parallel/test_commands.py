"""A batch survives encoding and decoding for the other processes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kubealign_services.generation.torch_engine.ragged_batch import PAGE_TOKENS, RaggedBatch
from kubealign_services.generation.torch_engine.tensor_parallel.commands import decode_batch, encode_batch


@st.composite
def batches(draw: st.DrawFn) -> RaggedBatch:
    decoding = draw(st.integers(0, 3))
    lengths = [1] * decoding + draw(st.lists(st.integers(1, 40), min_size=decoding == 0, max_size=3))
    earlier = [draw(st.integers(0, 90)) for _ in lengths]
    total = sum(lengths)
    numbers = np.random.default_rng(draw(st.integers(0, 99)))
    return RaggedBatch(
        tokens=numbers.integers(0, 10**6, total),
        positions=np.concatenate([np.arange(e, e + n) for e, n in zip(earlier, lengths, strict=True)]),
        lengths=np.array(lengths, np.int64),
        decoding_count=decoding,
        page_tables=numbers.integers(0, 10**6, (len(lengths), 20), np.int32),
        logit_indices=np.flatnonzero(numbers.integers(0, 2, total)),
    )


@given(batch=batches())
def test_encoding_round_trip(batch: RaggedBatch) -> None:
    """All fields survive except page-table entries beyond the longest sequence."""
    numbers = encode_batch(batch)
    assert numbers.dtype == np.int64
    decoded = decode_batch(numbers)
    most = -(-int(batch.context_lengths.max()) // PAGE_TOKENS)
    assert decoded.decoding_count == batch.decoding_count
    for name in ("tokens", "positions", "lengths", "logit_indices"):
        assert np.array_equal(getattr(decoded, name), getattr(batch, name))
    assert np.array_equal(decoded.page_tables, batch.page_tables[:, :most])
    assert decoded.page_tables.dtype == np.int32
