"""Group relative policy optimisation."""

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.baselines import constant_share, group_moments
from kubealign_services.algorithms.reference_kl import ReferenceKL
from kubealign_services.algorithms.token_policy import TokenPolicyObjective
from kubealign_services.algorithms.whitening import masked_mean, masked_std
from kubealign_services.batch.packed import Batch, sequence_sums

# Keeps a group whose rewards hardly differ from being blown up.
STD_EPSILON = 1e-6


class GRPO:
    """Shao et al. 2024, "DeepSeekMath".

    A token is an action; every token of a response has the response's advantage, relative to its group:

        A_i = (R_i - mean of the group) / (std of the group + 1e-6)        GroupStd (std with n - 1)
        A_i = R_i - mean of the group                                      None (Liu et al. 2025, "Dr. GRPO")

        loss = mean of -min(r A, clip(r, 1 - low, 1 + high) A) + beta KL - entropy_coefficient H

    with the mean over each response's tokens and then over responses (SequenceMean), or over all response
    tokens (TokenMean). R is the reward; where the KL is placed in the reward, minus beta times the
    response's KL."""

    needs_critic = False

    def __init__(self, entry: spec.GRPO) -> None:
        self._spec = entry
        self._kl = ReferenceKL(entry.kl)
        self.needs_reference = self._kl.active
        self.needs_old_logprobs = self._kl.active or entry.updates_per_step > 1

    def policy_objective(self) -> TokenPolicyObjective:
        return TokenPolicyObjective(
            clip=self._spec.clip,
            entropy_coefficient=self._spec.entropy_coefficient,
            aggregation=self._spec.aggregation,
            kl_coefficient=self._kl.loss_coefficient,
            kl_estimator=self._spec.kl.estimator,
        )

    def value_objective(self) -> None:
        return None

    def advantages(self, batch: Batch, state: dict[str, float]) -> dict[str, float]:
        """Reads the token columns loss_mask, behaviour_logprobs (and, where KL is measured, old_logprobs
        and reference_logprobs) and the sequence columns rewards, group. Adds the token column advantages,
        in the dtype of behaviour_logprobs. A sample that is alone in its group has advantage 0."""
        mask, group = batch.token("loss_mask").bool(), batch.sequence("group")
        divergence = self._kl.measure(batch, state)
        returns = batch.sequence("rewards") - sequence_sums(divergence.penalty, batch)
        means, stds = group_moments(returns, group)
        advantages = returns - means
        if self._spec.advantage_scale is spec.AdvantageScale.GROUP_STD:
            advantages = advantages / (stds + STD_EPSILON)
        spread = advantages[batch.sequence_of_token].where(mask, advantages.new_zeros(()))
        batch.token_columns["advantages"] = spread.to(batch.token("behaviour_logprobs").dtype)
        return divergence.metrics | {
            "advantage/mean": float(masked_mean(spread, mask)),
            "advantage/std": float(masked_std(spread, mask)),
            "return/mean": float(returns.mean()),
            "reward/constant_groups": constant_share(batch.sequence("rewards"), group),
        }
