"""Samples of several sequences: the merged view, the way back, and batches that have none."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kubealign_services.batch.packed import Batch, pack
from kubealign_services.batch.samples import (
    copy_columns,
    count_samples,
    last_sequences,
    mark_samples,
    merge_samples,
    name_sequences,
    sample_name,
    split_samples,
)


def episodes() -> Batch:
    """Three samples of one, three and two sequences, with prompts of one token, the fourth of two."""
    names = ["0/7#0", *name_sequences("0/7#1", 3), *name_sequences("1/2#0", 2)]
    batch = pack([[1, 2, 3], [4, 5], [6, 7, 8, 9], [10, 11, 12], [13, 14], [15, 16, 17]], names)
    batch.token_columns["loss_mask"] = torch.tensor([0, 1, 1, 0, 1, 0, 1, 0, 1, 0, 0, 1, 0, 1, 0, 1, 1])
    batch.sequence_columns["sample"] = torch.tensor([4, 2, 2, 2, 9, 9])
    batch.sequence_columns["group"] = torch.tensor([0, 0, 0, 0, 1, 1])
    batch.sequence_columns["truncated"] = torch.tensor([0, 1, 1, 0, 0, 1], dtype=torch.uint8)
    batch.scalars["version"] = 3.0
    return batch


def test_the_merged_view_has_one_sequence_for_each_sample() -> None:
    batch = episodes()
    merged = merge_samples(batch)
    assert merged.cu_seqlens.tolist() == [0, 3, 12, 17]
    assert merged.sample_ids == ["0/7#0", "0/7#1", "1/2#0"]
    assert merged.tokens is batch.tokens
    assert merged.token("loss_mask") is batch.token("loss_mask")
    assert merged.sequence("group").tolist() == [0, 0, 1]
    # The end of a sample is that of its last sequence.
    assert merged.sequence("truncated").tolist() == [0, 0, 1]
    # Responses of 2 tokens; of 1, 3 (with a token in between) and 1; of 1 and 2.
    assert merged.sequence("longest_response").tolist() == [2, 3, 2]
    assert "sample" not in merged.sequence_columns


def test_sequences_of_samples_are_found_in_any_order_of_samples() -> None:
    batch = episodes()
    assert split_samples(batch) == [[0], [1, 2, 3], [4, 5]]
    assert (last_sequences(batch), count_samples(batch)) == ([0, 3, 5], 3)
    turned = batch.select([4, 5, 0, 1, 2, 3])
    assert split_samples(turned) == [[0, 1], [2], [3, 4, 5]]
    assert merge_samples(turned).sample_ids == ["1/2#0", "0/7#0", "0/7#1"]


def test_columns_of_samples_reach_all_their_sequences() -> None:
    batch = episodes()
    merged = merge_samples(batch)
    merged.sequence_columns["rewards"] = torch.tensor([0.5, 1.5, -1.0])
    merged.token_columns["advantages"] = torch.arange(17.0)
    merged.scalars["weight"] = 2.0
    assert "advantages" not in batch.token_columns
    copy_columns(merged, batch)
    assert batch.sequence("rewards").tolist() == [0.5, 1.5, 1.5, 1.5, -1.0, -1.0]
    assert batch.token("advantages").tolist() == list(range(17))
    assert batch.scalars == {"version": 3.0, "weight": 2.0}
    # Each sequence keeps its own end and its sample.
    assert batch.sequence("truncated").tolist() == [0, 1, 1, 0, 0, 1]
    assert batch.sequence("sample").tolist() == [4, 2, 2, 2, 9, 9]
    assert "longest_response" not in batch.sequence_columns


@given(st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=6), min_size=1, max_size=6))
def test_a_batch_with_one_sequence_for_each_sample_is_its_own_view(rows: list[list[int]]) -> None:
    parts = [pack([row], [f"0/{index}#0"]) for index, row in enumerate(rows)]
    mark_samples(parts)
    assert all(not part.sequence_columns for part in parts)
    batch = pack(rows, [f"0/{index}#0" for index in range(len(rows))])
    merged = merge_samples(batch)
    assert merged is batch
    copy_columns(merged, batch)
    assert not batch.sequence_columns
    assert split_samples(batch) == [[index] for index in range(len(rows))]


@pytest.mark.parametrize("name", ["0/7#0", "a#b/1#12"])
def test_names_of_sequences_lead_to_their_sample(name: str) -> None:
    assert name_sequences(name, 1) == [name]
    assert name_sequences(name, 2) == [f"{name}/0", f"{name}/1"]
    assert {sample_name(each) for each in (name, *name_sequences(name, 11))} == {name}
