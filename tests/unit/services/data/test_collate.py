"""Prepared rows to packed batches."""

from dataclasses import replace

import pytest
import torch

from kubealign_services.data.collate import collate
from kubealign_services.data.prepared import PreparedRow

FIRST = PreparedRow(
    0, [5, 6], "p", response_tokens=[7, 1], chosen_tokens=[8, 1], rejected_tokens=[9, 9, 1], ratings=[2.5]
)
SECOND = PreparedRow(
    4, [5], "q", response_tokens=[1], chosen_tokens=[1], rejected_tokens=[7, 1], ratings=[-1.0]
)


def test_demonstrations() -> None:
    batch = collate([FIRST, SECOND], ["0/0", "0/3"], "demonstrations")
    assert batch.tokens.tolist() == [5, 6, 7, 1, 5, 1]
    assert batch.cu_seqlens.tolist() == [0, 4, 6]
    assert batch.token("loss_mask").tolist() == [0, 0, 1, 1, 0, 1]
    assert batch.sample_ids == ["0/0", "0/3"]
    assert not batch.sequence_columns


def test_loss_mask_covers_imitated_turns() -> None:
    turns = replace(FIRST, response_tokens=[7, 1, 5, 5, 8, 1], response_mask=[1, 1, 0, 0, 1, 1])
    batch = collate([turns, SECOND], ["a", "b"], "demonstrations")
    assert batch.tokens.tolist() == [5, 6, 7, 1, 5, 5, 8, 1, 5, 1]
    assert batch.token("loss_mask").tolist() == [0, 0, 1, 1, 0, 0, 1, 1, 0, 1]


def test_preferences_are_adjacent() -> None:
    batch = collate([FIRST, SECOND], ["a", "b"], "preferences")
    assert batch.sample_ids == ["a/chosen", "a/rejected", "b/chosen", "b/rejected"]
    assert batch.tokens.tolist() == [5, 6, 8, 1, 5, 6, 9, 9, 1, 5, 1, 5, 7, 1]
    assert batch.token("loss_mask").tolist() == [0, 0, 1, 1, 0, 0, 1, 1, 1, 0, 1, 0, 1, 1]
    assert not batch.sequence_columns


def test_preferences_with_ratings_have_one_for_each_side() -> None:
    rated = [replace(FIRST, chosen_rating=4.0, rejected_rating=1.5)]
    rated += [replace(SECOND, chosen_rating=0.0, rejected_rating=-2.0)]
    batch = collate(rated, ["a", "b"], "preferences")
    assert batch.sequence("rating").tolist() == [4.0, 1.5, 0.0, -2.0]
    assert batch.sequence("rating").dtype is torch.float32


def test_unknown_ratings_are_nan() -> None:
    batch = collate(
        [replace(FIRST, ratings=[2.5, None]), replace(SECOND, ratings=[-1.0, 3.0])], ["a", "b"], "ratings"
    )
    ratings = batch.sequence("ratings")
    assert (ratings.shape, ratings.dtype) == ((2, 2), torch.float32)
    assert torch.isnan(ratings).tolist() == [[False, True], [False, False]]
    assert ratings.nan_to_num(9.0).tolist() == [[2.5, 9.0], [-1.0, 3.0]]


def test_one_column_of_ratings_is_a_column_of_its_own() -> None:
    assert collate([FIRST, SECOND], ["a", "b"], "ratings").sequence("ratings").tolist() == [[2.5], [-1.0]]


def test_unpaired() -> None:
    batch = collate([replace(FIRST, label=True), replace(SECOND, label=False)], ["a", "b"], "unpaired")
    assert batch.sequence("label").tolist() == [1, 0]
    assert batch.sequence("label").dtype is torch.uint8
    assert batch.tokens.tolist() == [5, 6, 7, 1, 5, 1]


def test_prompt_rows_are_rejected() -> None:
    with pytest.raises(ValueError, match="row a has no response"):
        collate([PreparedRow(0, [5], "p")], ["a"], "prompts")


def test_labels_of_steps_are_at_their_tokens() -> None:
    rows = [
        replace(FIRST, ratings=None, response_tokens=[7, 8, 1], step_tokens=[0, 2], step_labels=[1.0, 0.25]),
        replace(SECOND, ratings=None, response_tokens=[7, 1], step_tokens=[0, 1], step_labels=[0.0, None]),
    ]
    batch = collate(rows, ["a", "b"], "ratings")
    labels = batch.token("step_labels")
    assert labels.dtype is torch.float32
    assert labels.nan_to_num(9.0).tolist() == [9, 9, 1, 9, 0.25, 9, 0, 9]
    assert not batch.sequence_columns


def test_of_two_steps_with_one_last_token_the_later_known_label_holds() -> None:
    row = replace(FIRST, ratings=None, step_tokens=[0, 0, 1], step_labels=[1.0, 0.0, None])
    assert collate([row], ["a"], "ratings").token("step_labels").nan_to_num(9.0).tolist() == [9, 9, 0, 9]
