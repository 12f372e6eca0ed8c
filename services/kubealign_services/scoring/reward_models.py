"""Rewards by reward models: a packed forward pass, pooled to one value per sequence and score."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeAlias, TypeVar

import torch
from torch import Tensor

from kubealign.spec.algorithms import ScorePooling
from kubealign.spec.sections.rewards import EnsembleAggregation
from kubealign_services.algorithms.losses.pooling import pool_outputs
from kubealign_services.batch.packed import Batch
from kubealign_services.scoring.attributes import attribute_weights, check_same_scores
from kubealign_services.training.contract import FrozenBackend

#: A forward pass of a model with a score head: batch, names of the requested outputs -> name -> float32 [T],
#: or [T, N] of N scores.
Forward: TypeAlias = Callable[[Batch, frozenset[str]], dict[str, Tensor]]

InputsT = TypeVar("InputsT", contravariant=True)


@dataclass(frozen=True)
class SequenceScores:
    """Scores of S sequences.

    rewards: float32 [S]. attributes: for models with several scores, name -> float32 [S]. disagreement:
    for an ensemble, float32 [S], the population standard deviation of its members' rewards.
    """

    rewards: Tensor
    attributes: dict[str, Tensor] = field(default_factory=dict)
    disagreement: Tensor | None = None


class NonFiniteScore(ArithmeticError):
    """The reward model returned NaN or an infinity. The message names the samples."""


class SequenceScorer(Protocol[InputsT]):
    """One reward model or several, for inputs of one type: a batch, or rollouts."""

    def score_details(self, inputs: InputsT, /) -> SequenceScores:
        """Score sequences. A batch needs `loss_mask` where a model's pooling is ResponseSum.

        Raises NonFiniteScore.
        """


class NamedScorer(SequenceScorer[InputsT], Protocol[InputsT]):
    """A scorer that can be a member of an ensemble."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the scores."""


class ModelReward:
    """One reward model, its scores weighted into one reward.

    pooling: pooling that the model was trained with. names: names of its scores; weights: as in
    `attribute_weights`, which also lists the errors.
    """

    def __init__(
        self,
        forward: Forward,
        pooling: ScorePooling,
        offload: Callable[[], object] = lambda: None,
        names: Sequence[str] = ("score",),
        weights: Mapping[str, float] | None = None,
    ) -> None:
        self._forward = forward
        self._pooling = pooling
        self._offload = offload
        self.names = tuple(names)
        self._weights = torch.tensor(attribute_weights(self.names, weights or {}))

    def offload(self) -> None:
        """Offload the model to the CPU until the next score."""
        self._offload()

    def score(self, batch: Batch) -> Tensor:
        """Return the rewards alone, float32 [S]."""
        return self.score_details(batch).rewards

    def score_details(self, batch: Batch) -> SequenceScores:
        """Implement SequenceScorer."""
        values = self._forward(batch, frozenset({"values"}))["values"]
        scores = pool_outputs(values, batch, self._pooling).float().view(len(batch), -1)
        finite = scores.isfinite().all(1)
        if not bool(finite.all()):
            invalid = [batch.sample_ids[i] for i in (~finite).nonzero().flatten().tolist()]
            raise NonFiniteScore(f"the reward model returned no finite score for {', '.join(invalid[:5])}")
        attribute_names = self.names if len(self.names) > 1 else ()
        return SequenceScores(
            scores @ self._weights, {name: scores[:, index] for index, name in enumerate(attribute_names)}
        )


class RewardModelEnsemble(Generic[InputsT]):
    """Several models as one reward. Raises UnknownAttribute where their scores differ."""

    def __init__(self, models: Sequence[NamedScorer[InputsT]], aggregate: EnsembleAggregation) -> None:
        check_same_scores([model.names for model in models])
        self._models = models
        self._aggregate = aggregate

    def score_details(self, inputs: InputsT, /) -> SequenceScores:
        """Implement SequenceScorer."""
        return aggregate_scores([model.score_details(inputs) for model in self._models], self._aggregate)


def build_reward(model: FrozenBackend, weights: Mapping[str, float] | None = None) -> ModelReward:
    """Wrap a loaded reward model, with the pooling of its config.

    The default is last-token pooling, as in transformers. Raises UnknownAttribute.
    """
    pooling = ScorePooling.LAST_TOKEN if model.pooling is None else ScorePooling(model.pooling.name)
    return ModelReward(model.forward, pooling, model.offload, model.scores, weights)


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
