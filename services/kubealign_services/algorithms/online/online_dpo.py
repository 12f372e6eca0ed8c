"""Online DPO: preference optimisation on the best and the worst of the policy's own responses."""

import torch
from torch import Tensor

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.advantages.baselines import constant_group_share
from kubealign_services.algorithms.contract import LossTerms, ModelOutputs, require_output
from kubealign_services.algorithms.losses.kl_penalty import ReferenceKL, add_kl_columns, add_kl_metrics
from kubealign_services.algorithms.losses.logprob_gap import add_gap_columns, add_gap_metrics
from kubealign_services.algorithms.losses.loss_weights import sequence_shares
from kubealign_services.algorithms.offline.dpo import DPOAlgorithm
from kubealign_services.algorithms.offline.ipo import IPOAlgorithm
from kubealign_services.algorithms.offline.pairwise import PairLossFunction, PairwiseObjective
from kubealign_services.algorithms.online.overlong import shape_rewards
from kubealign_services.algorithms.online.pair_selection import (
    CHOSEN,
    REJECTED,
    UNPAIRED,
    select_pairs,
    trained_samples,
)
from kubealign_services.batch.auxiliary_sequences import IS_BASELINE, trainable
from kubealign_services.batch.packed import Batch
from kubealign_services.batch.reward_columns import is_unrewarded

#: Sequence column of the marks of `pair_selection`.
PREFERENCE = "preference"


class OnlineDPOAlgorithm:
    """Guo et al. 2024, "Direct Language Model Alignment from Online AI Feedback", algorithm 1, with rewards
    in place of a judge's preference.

    Of the n responses y_i to a prompt, sampled in the step from the policy, the one with the highest reward
    (c) and the one with the lowest (r) form a pair:

        R_i  = reward_i - overlong penalty_i
        loss = mean over the pairs of -log sigmoid(beta (log p(c) / p_ref(c) - log p(r) / p_ref(r)))

    or IPO's loss of the pair. A group of equal rewards has no pair and no part in the mean. No gradient
    flows through the sampling.
    """

    needs_reference = True
    needs_critic = False

    def __init__(self, entry: spec.SampledPairsSpec) -> None:
        self._entry = entry
        # beta is the coefficient of the KL penalty whose optimum DPO's loss has; here it is only measured.
        penalty = spec.FixedKL(coefficient=entry.beta)
        self._kl = spec.KL(placement=spec.KLPlacement.LOSS, fixed=penalty)
        # With several updates the step's own passes no longer show the gap to the rollout engine.
        self.needs_old_logprobs = entry.updates_per_step > 1

    def pair_loss(self) -> PairLossFunction:
        """Return the loss of a pair that the spec names."""
        if self._entry.loss_type is spec.PreferenceLoss.IPO:
            return IPOAlgorithm(spec.IPOSpec(beta=self._entry.beta)).pair_loss
        return DPOAlgorithm(spec.DPOSpec(beta=self._entry.beta)).pair_loss

    def policy_objective(self) -> "SampledPairObjective":
        return SampledPairObjective(self.pair_loss(), self._kl)

    def value_objective(self) -> None:
        return None

    def advantages(self, batch: Batch, state: dict[str, float]) -> dict[str, float]:
        """Add the sequence column preference, int8 [S], and mark the samples outside of the pairs as
        auxiliary.

        Reads the sequence columns rewards and group; the samples of a group are consecutive.
        """
        metrics = shape_rewards(batch, self._entry.overlong)
        rewards, group = batch.sequence("shaped_rewards"), batch.sequence("group")
        metrics["reward/constant_groups"] = constant_group_share(rewards, group)
        metrics |= ReferenceKL(self._kl).measure(trainable(batch), state).metrics
        marks = torch.full((len(batch),), UNPAIRED, dtype=torch.int8)
        # A sample to which no reward applies is neither better nor worse than others.
        rewarded = ~is_unrewarded(batch)
        marks[rewarded] = select_pairs(rewards[rewarded], group[rewarded])
        batch.sequence_columns[PREFERENCE] = marks
        batch.sequence_columns[IS_BASELINE] = (~trained_samples(marks, group)).to(torch.uint8)
        if bool((marks != UNPAIRED).any()):
            metrics["preference/chosen_score"] = float(rewards[marks == CHOSEN].mean())
            metrics["preference/rejected_score"] = float(rewards[marks == REJECTED].mean())
        return metrics


class SampledPairObjective(PairwiseObjective):
    """Mean over the pairs of a minibatch. Sequences come two by two in the order in which they were sampled;
    the sequence column preference tells the chosen one.

    Two sequences without a preference are no pair: their loss has the weight 0. The loss of a minibatch
    without any pair is 0. Measures the KL divergence from the reference, and without old_logprobs the gap to
    the rollout engine, over all sequences.
    """

    def __init__(self, pair_loss: PairLossFunction, kl: spec.KL) -> None:
        super().__init__(pair_loss, reference=True)
        self._kl = kl

    def prepare(self, minibatch: Batch) -> None:
        super().prepare(minibatch)
        add_kl_columns(minibatch, self._kl, self.policy_samples(minibatch))
        add_gap_columns(minibatch)

    def policy_samples(self, minibatch: Batch) -> Tensor | None:
        """Return True for the samples of the policy, bool [S]; None: all are."""
        return None

    def shares(self, minibatch: Batch) -> Tensor:
        return sequence_shares(minibatch, minibatch.sequence(PREFERENCE) != UNPAIRED)

    def chosen_indices(self, microbatch: Batch) -> Tensor:
        first = super().chosen_indices(microbatch)
        return first + (microbatch.sequence(PREFERENCE)[first] == REJECTED).long()

    def loss(self, outputs: ModelOutputs, microbatch: Batch) -> LossTerms:
        terms = super().loss(outputs, microbatch)
        logprobs = require_output(outputs.logprobs, "logprobs")
        return add_gap_metrics(add_kl_metrics(terms, logprobs, microbatch, self._kl), logprobs, microbatch)
