"""Responses after other prompts: exact tokens, masks and the way back, compared with a loop."""

import pytest
import torch

from kubealign_services.batch.packed import Batch, pack
from kubealign_services.batch.replaced_prompts import PromptMismatch, replace_prompts

PROMPTS = [[1, 2], [3], [4, 5, 6]]
NEW_PROMPTS = [[9, 1, 2], [8, 7, 6, 3], [5]]
#: The second response has a token of the environment, and the third has no token.
RESPONSES = [[11, 12, 13], [14, 15, 16], []]
MASKS = [[1, 1, 1], [1, 0, 1], []]


def rollouts() -> Batch:
    batch = pack([p + r for p, r in zip(PROMPTS, RESPONSES, strict=True)], ["0/0#0", "0/1#0", "0/2#0"])
    mask = [bit for prompt, bits in zip(PROMPTS, MASKS, strict=True) for bit in [0] * len(prompt) + bits]
    batch.token_columns |= {
        "loss_mask": torch.tensor(mask, dtype=torch.uint8),
        "behaviour_logprobs": torch.arange(len(mask), dtype=torch.float32),
    }
    batch.sequence_columns["temperature"] = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64)
    batch.scalars["version"] = 3.0
    return batch


def test_responses_follow_the_new_prompts_token_by_token() -> None:
    replaced = replace_prompts(rollouts(), PROMPTS, NEW_PROMPTS)
    batch = replaced.batch
    sequences = batch.tokens.split(batch.lengths.tolist())
    assert [sequence.tolist() for sequence in sequences] == [
        new + response for new, response in zip(NEW_PROMPTS, RESPONSES, strict=True)
    ]
    assert [part.tolist() for part in batch.token("loss_mask").split(batch.lengths.tolist())] == [
        [0] * len(new) + bits for new, bits in zip(NEW_PROMPTS, MASKS, strict=True)
    ]
    assert batch.token("loss_mask").dtype == torch.uint8 and set(batch.token_columns) == {"loss_mask"}
    assert batch.sample_ids == ["0/0#0", "0/1#0", "0/2#0"]
    assert batch.sequence("temperature").tolist() == [0.5, 1.0, 2.0] and batch.scalars == {"version": 3.0}


@pytest.mark.parametrize("width", [(), (2,)])
def test_a_column_returns_to_the_tokens_that_it_belongs_to(width: tuple[int, ...]) -> None:
    original = rollouts()
    replaced = replace_prompts(original, PROMPTS, NEW_PROMPTS)
    # The value of a token is its id, so that a shift by one position would be visible.
    values = replaced.batch.tokens.float().reshape(-1, *[1] * len(width)).expand(-1, *width)
    restored = replaced.restore(values)
    assert restored.shape == (len(original.tokens), *width) and restored.dtype == torch.float32
    expected = [t for prompt, r in zip(PROMPTS, RESPONSES, strict=True) for t in [0] * len(prompt) + r]
    for column in restored.reshape(len(expected), -1).unbind(1):
        assert column.tolist() == expected


@pytest.mark.parametrize(
    ("prompts", "problem"),
    [
        ([[1, 3], [3], [4, 5, 6]], "0/0#0 does not begin with the 2 tokens of its row's prompt"),
        ([[1, 2], [3], [4, 5, 6, 7]], "0/2#0 does not begin with the 4 tokens of its row's prompt"),
        ([[1, 2], [3, 14], [4, 5, 6]], "0/1#0: the loss mask marks a token of the row's prompt"),
    ],
    ids=["another token", "too short", "a response token in the prompt"],
)
def test_another_prompt_is_refused(prompts: list[list[int]], problem: str) -> None:
    with pytest.raises(PromptMismatch, match=problem):
        replace_prompts(rollouts(), prompts, NEW_PROMPTS)
