"""Prepared rows to packed batches."""

import pytest

from kubealign_services.data.collate import collate
from kubealign_services.data.prepared import PreparedRow

FIRST = PreparedRow(0, [5, 6], "p", {}, [7, 1], [8, 1], [9, 9, 1], 2.5)
SECOND = PreparedRow(4, [5], "q", {}, [1], [1], [7, 1], -1.0)


def test_demonstrations() -> None:
    batch = collate([FIRST, SECOND], ["0/0", "0/3"], "demonstrations")
    assert batch.tokens.tolist() == [5, 6, 7, 1, 5, 1]
    assert batch.cu_seqlens.tolist() == [0, 4, 6]
    assert batch.token("loss_mask").tolist() == [0, 0, 1, 1, 0, 1]
    assert batch.sample_ids == ["0/0", "0/3"]


def test_preferences_lie_side_by_side() -> None:
    batch = collate([FIRST, SECOND], ["a", "b"], "preferences")
    assert batch.sample_ids == ["a/chosen", "a/rejected", "b/chosen", "b/rejected"]
    assert batch.tokens.tolist() == [5, 6, 8, 1, 5, 6, 9, 9, 1, 5, 1, 5, 7, 1]
    assert batch.token("loss_mask").tolist() == [0, 0, 1, 1, 0, 0, 1, 1, 1, 0, 1, 0, 1, 1]


def test_ratings() -> None:
    batch = collate([FIRST, SECOND], ["a", "b"], "ratings")
    assert batch.sequence("rating").tolist() == [2.5, -1.0]
    assert len(batch) == 2


def test_prompts_are_nothing_to_learn_from() -> None:
    with pytest.raises(ValueError, match="row a has no response"):
        collate([PreparedRow(0, [5], "p")], ["a"], "prompts")
