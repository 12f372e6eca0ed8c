"""A random batch of prompts with sampled responses, in float64."""

from collections.abc import Callable

import pytest
import torch

from kubealign_services.batch.packed import Batch, pack


def random_batch(responses: list[int], groups: list[int], seed: int = 0) -> Batch:
    """One sequence for each response length, after prompts of 1 to 3 tokens, with every column of an online
    step."""
    generator = torch.Generator().manual_seed(seed)
    prompts = [1 + i % 3 for i in range(len(responses))]
    batch = pack(
        [[7] * (p + r) for p, r in zip(prompts, responses, strict=True)],
        [str(i) for i in range(len(responses))],
    )
    total = len(batch.tokens)
    mask: list[int] = []
    for prompt, response in zip(prompts, responses, strict=True):
        mask += [0] * prompt + [1] * response
    batch.token_columns["loss_mask"] = torch.tensor(mask, dtype=torch.uint8)

    def noise(scale: float) -> torch.Tensor:
        return scale * torch.randn(total, dtype=torch.float64, generator=generator)

    logprobs = -noise(1.0).abs() - 0.1
    batch.token_columns["behaviour_logprobs"] = logprobs
    batch.token_columns["engine_logprobs"] = logprobs
    batch.token_columns["old_logprobs"] = logprobs + noise(0.01)
    batch.token_columns["reference_logprobs"] = logprobs + noise(0.3)
    batch.token_columns["values"] = noise(1.0)
    batch.sequence_columns["rewards"] = torch.randn(len(batch), dtype=torch.float64, generator=generator)
    batch.sequence_columns["group"] = torch.tensor(groups)
    batch.sequence_columns["truncated"] = torch.zeros(len(batch), dtype=torch.uint8)
    return batch


@pytest.fixture
def make_batch() -> Callable[..., Batch]:
    return random_batch
