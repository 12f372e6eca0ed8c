"""Packed batches: shapes are checked, columns survive encoding, altered bytes are refused."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kubealign_services.batch.codec import CorruptBatch, decode, encode
from kubealign_services.batch.packed import Batch, concatenate, pack, sequence_sums

sequences = st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=6), min_size=1, max_size=6)


def with_columns(rows: list[list[int]]) -> Batch:
    batch = pack(rows, [f"s{i}" for i in range(len(rows))])
    batch.token_columns["loss_mask"] = (batch.tokens % 2).to(torch.uint8)
    batch.token_columns["logprobs"] = -batch.tokens.float() / 7
    batch.sequence_columns["rewards"] = torch.arange(len(rows), dtype=torch.float64) / 3
    batch.scalars["temperature"] = 0.7
    return batch


def same(one: Batch, other: Batch) -> bool:
    return (
        one.sample_ids == other.sample_ids
        and one.scalars == other.scalars
        and torch.equal(one.tokens, other.tokens)
        and torch.equal(one.cu_seqlens, other.cu_seqlens)
        and one.token_columns.keys() == other.token_columns.keys()
        and all(torch.equal(column, other.token_columns[name]) for name, column in one.token_columns.items())
        and all(
            torch.equal(column, other.sequence_columns[name]) for name, column in one.sequence_columns.items()
        )
    )


@given(sequences)
def test_decoding_inverts_encoding(rows: list[list[int]]) -> None:
    batch = with_columns(rows)
    assert same(decode(encode(batch)), batch)


@given(sequences)
def test_concatenating_selected_sequences_gives_the_batch(rows: list[list[int]]) -> None:
    batch = with_columns(rows)
    assert same(concatenate([batch.select([i]) for i in range(len(batch))]), batch)


@given(sequences)
def test_sums_and_positions_match_plain_lists(rows: list[list[int]]) -> None:
    batch = with_columns(rows)
    assert sequence_sums(batch.tokens.long(), batch).tolist() == [sum(row) for row in rows]
    assert batch.positions.tolist() == [position for row in rows for position in range(len(row))]


def test_one_flipped_bit_is_refused() -> None:
    message = encode(with_columns([[1, 2, 3]]))
    altered = bytearray(message.columns)
    altered[-1] ^= 1
    message.columns = bytes(altered)
    with pytest.raises(CorruptBatch, match="digest"):
        decode(message)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cu_seqlens": torch.tensor([0, 2], dtype=torch.int32)}, "runs from 0 to 3"),
        ({"cu_seqlens": torch.tensor([0, 3, 3], dtype=torch.int32)}, "at least one token"),
        ({"sample_ids": []}, "0 sample ids for 1"),
        ({"token_columns": {"x": torch.zeros(2)}}, "token column x"),
        ({"sequence_columns": {"y": torch.zeros(2)}}, "sequence column y"),
    ],
)
def test_shapes_that_do_not_agree_are_refused(changes: dict[str, object], words: str) -> None:
    parts: dict[str, object] = {
        "tokens": torch.tensor([1, 2, 3], dtype=torch.int32),
        "cu_seqlens": torch.tensor([0, 3], dtype=torch.int32),
        "sample_ids": ["a"],
    }
    with pytest.raises(ValueError, match=words):
        Batch(**(parts | changes))  # type: ignore[arg-type]
