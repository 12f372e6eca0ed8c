"""Scores of sequences and their aggregation over an ensemble."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from kubealign.spec.sections.rewards import EnsembleAggregation


@dataclass(frozen=True)
class SequenceScores:
    """Scores of S sequences.

    rewards: float32 [S]. attributes: for models with several scores, name -> float32 [S]. disagreement:
    for an ensemble, float32 [S], the population standard deviation of its members' rewards.
    """

    rewards: Tensor
    attributes: dict[str, Tensor] = field(default_factory=dict)
    disagreement: Tensor | None = None


def aggregate_scores(members: Sequence[SequenceScores], how: EnsembleAggregation) -> SequenceScores:
    """Aggregate the members' rewards, and each attribute likewise.

    By mean or minimum (Coste et al. 2024, mean and worst-case optimisation).
    """
    rewards = torch.stack([member.rewards for member in members])
    return SequenceScores(
        _reduce(rewards, how),
        {
            name: _reduce(torch.stack([member.attributes[name] for member in members]), how)
            for name in members[0].attributes
        },
        rewards.std(0, correction=0),
    )


def _reduce(scores: Tensor, how: EnsembleAggregation) -> Tensor:
    """Reduce [members, S] to [S]."""
    return scores.mean(0) if how is EnsembleAggregation.MEAN else scores.amin(0)
