"""Small batches in float64, and a stand-in for the trained model."""

import itertools

import torch
from torch import Tensor

from kubealign_services.algorithms.contract import ModelOutputs
from kubealign_services.batch.packed import Batch, pack


def random_batch(responses: list[int], groups: list[int], seed: int = 0) -> Batch:
    """One sequence for each response length, after prompts of 1 to 3 tokens, with every column of an online
    step.
    """
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

    def noise(scale: float) -> Tensor:
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
    batch.scalars |= {"temperature": 1.0, "max_tokens": float(max(responses))}
    return batch


def stand_in(batch: Batch, weights: Tensor) -> ModelOutputs:
    """Return the outputs of a stand-in model with three weights. They depend on the weights, differently at
    each token, and only on the tokens of the sequence itself. Sample ids are numbers that distinguish the
    sequences. Log-probabilities are near the column behaviour_logprobs, if the batch has it; the columns
    candidates and ratings determine the widths of their outputs.
    """
    which = torch.tensor([float(name) for name in batch.sample_ids], dtype=torch.float64)
    position, own = batch.positions.double(), which[batch.sequence_of_token]
    move = weights @ torch.stack([torch.cos(position + own), torch.sin(2 * position), position / 10])
    start = batch.token_columns.get("behaviour_logprobs", torch.full_like(position, -1.0)).double()
    ratings = batch.sequence_columns.get("ratings")
    candidates = batch.token_columns.get("candidates")
    return ModelOutputs(
        logprobs=start + 0.5 * move,
        entropy=1.0 + move.sin(),
        values=2 * move.tanh() if ratings is None else 2 * _wide(move, ratings.shape[1]).tanh(),
        candidate_logprobs=None if candidates is None else _candidates(move, candidates.shape[1]),
    )


def _wide(move: Tensor, width: int) -> Tensor:
    """Expand [T] to [T, width], each column another function of it."""
    return move[:, None] * torch.linspace(1, 2, width, dtype=move.dtype) + torch.arange(width) / 10


def _candidates(move: Tensor, width: int) -> Tensor:
    """Return log-probabilities of width of width + 1 tokens."""
    return _wide(move, width + 1).log_softmax(1)[:, :width]


def slow_spans(batch: Batch) -> list[list[int]]:
    """Return the positions of the response tokens of each sequence."""
    mask, offsets = batch.token("loss_mask").tolist(), batch.cu_seqlens.tolist()
    return [
        [token for token in range(start, end) if mask[token]] for start, end in itertools.pairwise(offsets)
    ]


def with_steps(batch: Batch, rewards: dict[tuple[int, int], float]) -> Batch:
    """Add step rewards; (sequence, index of the response token) -> reward."""
    spans = slow_spans(batch)
    column, ends = torch.zeros(len(batch.tokens)), torch.zeros(len(batch.tokens), dtype=torch.uint8)
    for (sequence, index), reward in rewards.items():
        column[spans[sequence][index]] = reward
        ends[spans[sequence][index]] = 1
    batch.token_columns |= {"turn_rewards": column, "turn_ends": ends}
    return batch


def with_random_steps(batch: Batch, generator: torch.Generator) -> Batch:
    """Add step rewards at some of the response tokens."""
    rewards = {
        (sequence, index): float(torch.randn((), generator=generator))
        for sequence, span in enumerate(slow_spans(batch))
        for index in range(len(span))
        if float(torch.rand((), generator=generator)) < 0.6
    }
    return with_steps(batch, rewards)
