"""REINFORCE leave-one-out."""

import torch

from kubealign.spec import algorithms as spec
from kubealign_services.algorithms.baselines import constant_share, leave_one_out
from kubealign_services.algorithms.reference_kl import ReferenceKL
from kubealign_services.algorithms.sequence_policy import SequencePolicyObjective
from kubealign_services.algorithms.whitening import masked_mean, masked_std, whiten
from kubealign_services.batch.packed import Batch, sequence_sums


class RLOO:
    """Ahmadian et al. 2024, "Back to Basics".

    The whole response is one action, and the other samples of its prompt are its baseline:

        R_i = reward_i - beta * (sum over its tokens of KL_t)        A_i = R_i - mean of the group's other R

        loss = mean over sequences of -min(r_i A_i, clip(r_i) A_i),    r_i = p(response_i) / p_old(response_i)

    whose gradient is REINFORCE's, -A_i grad log p(response_i), where the policy has not moved yet.
    """

    needs_critic = False

    def __init__(self, entry: spec.RLOO) -> None:
        self._spec = entry
        self._kl = ReferenceKL(entry.kl)
        self.needs_reference = self._kl.active
        self.needs_old_logprobs = self._kl.active or entry.updates_per_step > 1

    def policy_objective(self) -> SequencePolicyObjective:
        return SequencePolicyObjective(self._spec.clip, self._spec.entropy_coefficient)

    def value_objective(self) -> None:
        return None

    def advantages(self, batch: Batch, state: dict[str, float]) -> dict[str, float]:
        """Reads the token columns loss_mask, behaviour_logprobs (and, where KL is measured, old_logprobs
        and reference_logprobs) and the sequence columns rewards, group. Adds the sequence column
        advantages. A sample that is alone in its group has advantage 0. Advantage metrics are of before
        whitening."""
        group, everything = batch.sequence("group"), torch.ones(len(batch), dtype=torch.bool)
        divergence = self._kl.measure(batch, state)
        returns = batch.sequence("rewards") - sequence_sums(divergence.penalty, batch)
        advantages = returns - leave_one_out(returns, group)
        batch.sequence_columns["advantages"] = (
            whiten(advantages, everything) if self._spec.whiten_advantages else advantages
        )
        return divergence.metrics | {
            "advantage/mean": float(masked_mean(advantages, everything)),
            "advantage/std": float(masked_std(advantages, everything)),
            "return/mean": float(returns.mean()),
            "reward/constant_groups": constant_share(batch.sequence("rewards"), group),
        }
