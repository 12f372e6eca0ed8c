"""Process reward models: one score for each step of a response, the probability that the step is right."""

import math
from collections.abc import Sequence

import torch

from kubealign.spec.sections.step_rewards import StepAggregation
from kubealign_services.batch.packed import Batch
from kubealign_services.scoring.reward_models import Forward, NonFiniteScore


class StepModel:
    """One process reward model.

    Args:
        forward: Forward pass of its head, with one output, the logit of a right step, or two, the logits of a
            wrong and of a right one.
    """

    def __init__(self, forward: Forward) -> None:
        self._forward = forward

    def score(self, batch: Batch, last_tokens: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return the probability of each step of each sequence to be right.

        Args:
            last_tokens: Indices of the steps' last tokens in each of the sequences.

        Raises NonFiniteScore.
        """
        values = self._forward(batch, frozenset({"values"}))["values"]
        logits = values if values.dim() == 1 else values[:, 1] - values[:, 0]
        probabilities = torch.sigmoid(logits)
        scores: list[list[float]] = []
        for name, start, indices in zip(
            batch.sample_ids, batch.cu_seqlens.tolist(), last_tokens, strict=False
        ):
            steps = probabilities[[start + index for index in indices]].tolist()
            if not all(math.isfinite(step) for step in steps):
                raise NonFiniteScore(f"the reward model returned no finite score for a step of {name}")
            scores.append(steps)
        return scores


def aggregate_steps(scores: Sequence[float], how: StepAggregation) -> float:
    """Return the reward of a response from the scores of its steps; 0 without steps."""
    if not scores:
        return 0.0
    match how:
        case StepAggregation.SUM:
            return math.fsum(scores)
        case StepAggregation.MINIMUM:
            return min(scores)
        case StepAggregation.PRODUCT:
            return math.prod(scores)
        case StepAggregation.MEAN:
            return math.fsum(scores) / len(scores)
        case StepAggregation.LAST:
            return scores[-1]
