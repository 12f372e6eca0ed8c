"""Base classes of algorithms that learn from their own samples.

A subclass gives the surrogate loss and, where it differs, the advantages.
"""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.advantages.baselines import constant_group_share
from kubealign_services.algorithms.advantages.normalization import normalize
from kubealign_services.algorithms.advantages.optimal_token import optimal_token_advantages
from kubealign_services.algorithms.advantages.process_supervision import process_advantages
from kubealign_services.algorithms.advantages.separate_rewards import normalize_then_sum
from kubealign_services.algorithms.advantages.statistics import advantage_metrics
from kubealign_services.algorithms.contract import Objective
from kubealign_services.algorithms.losses.kl_penalty import ReferenceKL
from kubealign_services.algorithms.losses.policy_objective import PolicyObjective
from kubealign_services.algorithms.losses.surrogate import ClippedRatio, SelectiveSurrogate, Surrogate
from kubealign_services.algorithms.losses.trust_region import make_trust_region
from kubealign_services.algorithms.online.overlong import shape_rewards
from kubealign_services.batch.auxiliary_sequences import trainable, trainable_mask
from kubealign_services.batch.packed import Batch, sequence_sums


class OnlineAlgorithm(ABC):
    """Base of the algorithms with rollouts.

    The response is rewarded as a whole, and each of its tokens has its advantage, unless the center is
    OptimalToken (`optimal_token_advantages`) or the credit that of steps (`process_advantages`):

        R_i = reward_i - overlong penalty_i - beta * (sum over the response of KL_t)
        A_i = (R_i - center) / (scale + epsilon)
    """

    needs_critic = False

    def __init__(self, entry: spec.OnPolicySpec) -> None:
        self._entry = entry
        self._kl = ReferenceKL(entry.kl)
        self._normalizes_separately = (
            isinstance(entry, spec.GroupRelativeSpec)
            and entry.reward_aggregation is spec.RewardAggregation.NORMALIZE_THEN_SUM
        )
        self._credits_steps = isinstance(entry, spec.GroupRelativeSpec) and entry.credits_steps
        self.needs_reference = self._kl.is_active
        # With one update the step's own forward pass is the old policy, whichever policy sampled.
        self._has_token_baseline = entry.advantage.center is spec.AdvantageCenter.OPTIMAL_TOKEN
        extra = {"entropy": entry.top_entropy_fraction is not None, "collision": self._has_token_baseline}
        self.extra_old_outputs = tuple(name for name, is_needed in extra.items() if is_needed)
        self.needs_old_logprobs = (
            self._kl.is_measured_before_step or entry.updates_per_step > 1 or len(self.extra_old_outputs) > 0
        )

    @abstractmethod
    def surrogate(self) -> Surrogate:
        """Return the loss of each action."""

    def policy_objective(self) -> Objective:
        return PolicyObjective(self._entry, self.surrogate())

    def value_objective(self) -> Objective | None:
        return None

    def advantages(self, batch: Batch, state: dict[str, float]) -> dict[str, float]:
        """Add the token column advantages, in the dtype of behaviour_logprobs: 0 at auxiliary sequences.

        Reads the token columns loss_mask, behaviour_logprobs (and, where KL is measured before the step,
        old_logprobs and reference_logprobs) and the sequence columns rewards, group. Auxiliary sequences
        enter no metric either.
        """
        metrics = self.shape_rewards(batch)
        part = trainable(batch)
        rewards = part.sequence("shaped_rewards")
        divergence = self._kl.measure(part, state)
        if self._entry.samples_per_prompt > 1 and not self.needs_critic:
            metrics["reward/constant_groups"] = constant_group_share(rewards, part.sequence("group"))
        columns, metrics_of_advantages = self.compute_advantages(part, rewards, divergence.penalty)
        trainable_tokens = trainable_mask(batch)[batch.sequence_of_token]
        for name, column in columns.items():
            full_column = torch.zeros(len(batch.tokens), dtype=column.dtype)
            full_column[trainable_tokens] = column
            batch.token_columns[name] = full_column
        return metrics | divergence.metrics | metrics_of_advantages

    def shape_rewards(self, batch: Batch) -> dict[str, float]:
        """Add the sequence column shaped_rewards, for auxiliary sequences too."""
        return shape_rewards(batch, self._entry.overlong)

    def compute_advantages(
        self, batch: Batch, rewards: Tensor, penalty: Tensor
    ) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Return the token columns [T] to add, advantages among them, and their metrics.

        Args:
            rewards: [S].
            penalty: [T], KL penalty subtracted from the reward at each token.
        """
        returns = rewards - sequence_sums(penalty, batch)
        if self._has_token_baseline or self._credits_steps:
            mask = batch.token("loss_mask").bool()
            if self._credits_steps:
                advantages = process_advantages(batch, returns, self._entry.advantage)
            else:
                advantages = optimal_token_advantages(batch, returns)
            advantages = advantages.to(batch.token("behaviour_logprobs").dtype)
            return {"advantages": advantages}, advantage_metrics(advantages[mask], returns)
        return broadcast_to_tokens(self.compared(returns, batch), returns, batch)

    def compared(self, returns: Tensor, batch: Batch) -> Tensor:
        """Map the returns of responses to their advantages, [S]."""
        if self._normalizes_separately:
            return normalize_then_sum(batch, self._entry.advantage)
        return normalize(returns, batch.sequence("group"), self._entry.advantage)


class ClippedOnlineAlgorithm(OnlineAlgorithm):
    """Base of the algorithms with a clipped ratio, of tokens or of responses, or another trust region."""

    def __init__(self, entry: spec.ClippedRatioSpec) -> None:
        super().__init__(entry)
        self._clipped = entry
        if isinstance(self.surrogate(), SelectiveSurrogate):
            self.needs_old_logprobs = True

    def surrogate(self) -> Surrogate:
        if self._clipped.trust_region is not None:
            return make_trust_region(self._clipped.trust_region, self._clipped.effective_clip)
        return ClippedRatio(self._clipped.effective_clip)

    def policy_objective(self) -> Objective:
        return PolicyObjective(self._entry, self.surrogate(), self._clipped.ratio)


def broadcast_to_tokens(
    advantages: Tensor, returns: Tensor, batch: Batch
) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Broadcast advantages of responses [S] to their tokens, and return them with their metrics."""
    tokens = advantages[batch.sequence_of_token].to(batch.token("behaviour_logprobs").dtype)
    tokens = tokens.where(batch.token("loss_mask").bool(), tokens.new_zeros(()))
    return {"advantages": tokens}, advantage_metrics(advantages, returns)
