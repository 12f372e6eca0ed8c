"""Pairwise objective shared by all preference algorithms, and its metrics."""

from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from kubealign.spec.algorithms import ChosenLikelihoodSpec, LikelihoodReduction
from kubealign_services.algorithms.contract import LossTerms, ModelOutputs, require_output
from kubealign_services.algorithms.losses.loss_weights import sequence_shares
from kubealign_services.algorithms.losses.sequence_logprobs import (
    ResponseLogprobs,
    pairwise_accuracy,
    response_logprobs,
)
from kubealign_services.batch.packed import Batch


@dataclass(frozen=True)
class PreferencePairs:
    """A batch of P preference pairs.

    rating_gap: [P], rating of the chosen less that of the rejected; None where the rows have no ratings.
    """

    chosen: ResponseLogprobs
    rejected: ResponseLogprobs
    rating_gap: Tensor | None


@dataclass(frozen=True)
class PairTerms:
    """Loss and rewards of each pair, [P] each.

    chosen_reward, rejected_reward: implicit rewards on the method's own scale. extra_metrics: further
    metrics, reported as means.
    """

    loss: Tensor
    chosen_reward: Tensor
    rejected_reward: Tensor
    extra_metrics: dict[str, Tensor] = field(default_factory=dict)


class PairLossFunction(Protocol):
    """Loss function of one preference method."""

    def __call__(self, pairs: PreferencePairs) -> PairTerms: ...


class PairwiseObjective:
    """Mean over pairs of the method's pair loss. Sequences come as consecutive pairs: chosen, rejected.

    A subclass may order the pairs otherwise, and leave some out of the mean.

    Reads the token columns loss_mask and, with `reference`, reference_logprobs; with `rated`, the sequence
    column rating.
    """

    outputs = frozenset({"logprobs"})
    unit = 2

    def __init__(self, pair_loss: PairLossFunction, *, reference: bool, rated: bool = False) -> None:
        self._pair_loss = pair_loss
        self._reference = reference
        self._rated = rated

    def prepare(self, minibatch: Batch) -> None:
        """Add the sequence shares. Raises ValueError for an odd number of sequences."""
        if len(minibatch) % 2 != 0:
            raise ValueError(f"preferences come in pairs of sequences, and there are {len(minibatch)}")
        minibatch.sequence_columns["sequence_shares"] = self.shares(minibatch)

    def shares(self, minibatch: Batch) -> Tensor:
        """Return half of each pair's share of the mean for both of its sequences, float64 [S]."""
        return sequence_shares(minibatch)

    def chosen_indices(self, microbatch: Batch) -> Tensor:
        """Return the index of the chosen sequence of each pair, int64 [P]; the other one is the rejected."""
        return torch.arange(0, len(microbatch), 2)

    def loss(self, outputs: ModelOutputs, microbatch: Batch) -> LossTerms:
        logprobs = require_output(outputs.logprobs, "logprobs")
        both = response_logprobs(logprobs, microbatch, self._reference)
        each = microbatch.sequence("sequence_shares").to(both.logprob)
        share = each[0::2] + each[1::2]
        chosen, gap = self.chosen_indices(microbatch), None
        if self._rated:
            ratings = microbatch.sequence("rating").to(both.logprob)
            gap = ratings[chosen] - ratings[chosen ^ 1]
        pairs = PreferencePairs(both.select(chosen), both.select(chosen ^ 1), gap)
        terms = self._pair_loss(pairs)
        loss = (share * terms.loss).sum()
        margin = terms.chosen_reward - terms.rejected_reward
        means = {
            "preference/loss": terms.loss,
            "preference/accuracy": pairwise_accuracy(margin),
            "preference/margin": margin,
            "preference/chosen_reward": terms.chosen_reward,
            "preference/rejected_reward": terms.rejected_reward,
            "preference/chosen_logprob": pairs.chosen.mean_logprob,
            "preference/rejected_logprob": pairs.rejected.mean_logprob,
            **terms.extra_metrics,
        }
        if self._reference:
            # The margin can grow while both log-probabilities fall: visible here before it shows in samples.
            means["preference/chosen_lost"] = pairs.chosen.log_ratio < 0
        return LossTerms(loss, {name: (share * value.detach()).sum() for name, value in means.items()})


def with_chosen_likelihood(terms: PairTerms, pairs: PreferencePairs, spec: ChosenLikelihoodSpec) -> PairTerms:
    """Add the chosen responses' negative log-likelihood to the loss, with the spec's coefficient.

    A coefficient of 0 returns the terms unchanged. The metric preference/nll_loss has the spec's reduction.
    """
    if spec.nll_coefficient == 0:
        return terms
    is_sum = spec.nll_reduction is LikelihoodReduction.SUM
    nll = -(pairs.chosen.logprob if is_sum else pairs.chosen.mean_logprob)
    metrics = {**terms.extra_metrics, "preference/nll_loss": nll}
    return replace(terms, loss=terms.loss + spec.nll_coefficient * nll, extra_metrics=metrics)


def bradley_terry_loss(chosen: Tensor, rejected: Tensor) -> Tensor:
    """-log sigmoid(chosen - rejected), pair by pair (Bradley and Terry 1952; Ouyang et al. 2022, eq. 1).

    chosen, rejected: scores, [pairs].
    """
    return -logsigmoid(chosen - rejected)
