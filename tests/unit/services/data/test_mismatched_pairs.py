"""Mismatched pairs: prompts with other rows' responses."""

import torch

from kubealign_services.batch.auxiliary_sequences import drop_auxiliary
from kubealign_services.batch.packed import pack
from kubealign_services.data.mismatched_pairs import add_mismatched_pairs, mismatched_row
from kubealign_services.data.prepared import PreparedRow


def row(index: int, prompt: list[int], response: list[int]) -> PreparedRow:
    return PreparedRow(row=index, prompt_tokens=prompt, prompt_text="", response_tokens=response)


ROWS = [row(i, [10 + i], [20 + i, 99]) for i in range(5)]


def test_each_row_gets_another_rows_response_and_no_row_its_own() -> None:
    partners = [mismatched_row(index, ROWS) for index in range(5)]
    assert partners == [2, 3, 4, 0, 1]
    assert [mismatched_row(index, ROWS[:2]) for index in range(2)] == [1, 0]


def test_a_response_to_the_same_prompt_is_passed_over() -> None:
    alike = [row(i, [1 if i in (0, 2, 3) else 5 + i], [i]) for i in range(5)]
    assert mismatched_row(0, alike) == 4
    one_prompt = [row(i, [1], [i]) for i in range(4)]
    assert [mismatched_row(index, one_prompt) for index in range(4)] == [2, 3, 0, 1]


def test_auxiliary_sequences_are_appended_to_an_unchanged_batch() -> None:
    batch = pack([[14, 24, 99], [11, 21, 99]], ["0/4", "0/1"])
    batch.token_columns["loss_mask"] = torch.tensor([0, 1, 1, 0, 1, 1], dtype=torch.uint8)
    batch.sequence_columns["label"] = torch.tensor([1, 0], dtype=torch.uint8)
    both = add_mismatched_pairs(batch, [4, 1], ROWS)
    assert both.sample_ids == ["0/4", "0/1", "0/4/mismatched", "0/1/mismatched"]
    assert both.tokens.tolist() == [14, 24, 99, 11, 21, 99, 14, 21, 99, 11, 23, 99]
    assert both.token("loss_mask").tolist() == [0, 1, 1] * 4
    assert both.sequence("companion").tolist() == [0, 0, 1, 1]
    remaining = drop_auxiliary(both)
    assert remaining.tokens.tolist() == [14, 24, 99, 11, 21, 99]
    assert remaining.sequence("label").tolist() == [1, 0]
    assert set(remaining.sequence_columns) == {"label"}
