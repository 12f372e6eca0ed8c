"""REINFORCE++: PPO's clipped loss without a critic."""

import torch
from torch import Tensor

from kubealign.spec import algorithms as spec
from kubealign.spec.algorithms import AdvantageCenter, AdvantageScale
from kubealign_services.algorithms.advantages.gae import gae
from kubealign_services.algorithms.advantages.normalization import divide_by_scale, subtract_center
from kubealign_services.algorithms.advantages.statistics import advantage_metrics
from kubealign_services.algorithms.advantages.token_rewards import place_rewards
from kubealign_services.algorithms.online.base import ClippedOnlineAlgorithm
from kubealign_services.batch.packed import Batch
from kubealign_services.batch.reward_columns import TURN_REWARDS


class ReinforcePlusPlusAlgorithm(ClippedOnlineAlgorithm):
    """Hu et al. 2025, "REINFORCE++: Stabilizing Critic-Free Policy Optimization with Global Advantage
    Normalization".

    PPO's clipped loss without its critic. A token's return is the discounted sum of the rewards from that
    token on (OpenRLHF's get_cumulative_returns), with the response's reward at its last token:

        r_t = -beta KL_t + [t is last] reward
        R_t = r_t + gamma R_{t+1}                   0 after the last response token
        A_t = (R_t - mean) / (std + epsilon)        over all response tokens of the step

    With `credit` Steps each reward of a step, or of an episode's turn, is placed at its own last token, and
    the rest of the reward at that of the response:

        r_t = -beta KL_t + step reward_t + [t is last] (reward - sum of step rewards)

    With `advantage.center` Group (REINFORCE++-baseline) or LeaveOneOut the reward is first compared with
    its group's. With `advantage.scale` Batch the rest is normalised over all response tokens of the step,
    where long responses weigh more, so that its mean is not 0 yet:

        r_t = -beta KL_t + [t is last] (reward - mean reward of the group)
        A_t = (R_t - mean) / (std + epsilon)

        loss = mean over all response tokens of -min(r_t A_t, clip(r_t, 1 - low, 1 + high) A_t)
    """

    def __init__(self, entry: spec.ReinforcePlusPlusSpec) -> None:
        super().__init__(entry)
        self._spec = entry

    def compute_advantages(
        self, batch: Batch, rewards: Tensor, penalty: Tensor
    ) -> tuple[dict[str, Tensor], dict[str, float]]:
        norm, group = self._entry.advantage, batch.sequence("group")
        mask, dtype = batch.token("loss_mask").bool(), batch.token("behaviour_logprobs").dtype
        groups = group[batch.sequence_of_token][mask]
        among_samples = norm.center in (AdvantageCenter.GROUP, AdvantageCenter.LEAVE_ONE_OUT)
        returns = self._returns(batch, rewards, penalty)[mask]
        compared, center = returns, norm.center
        if among_samples:
            compared = self._returns(batch, subtract_center(rewards, group, center), penalty)[mask]
            center = AdvantageCenter.BATCH if norm.scale is AdvantageScale.BATCH else AdvantageCenter.NONE
        centered_returns = subtract_center(compared, groups, center)
        advantages = torch.zeros(len(mask), dtype=dtype)
        advantages[mask] = divide_by_scale(centered_returns, returns, groups, norm).to(dtype)
        return {"advantages": advantages}, advantage_metrics(advantages[mask], returns)

    def _returns(self, batch: Batch, rewards: Tensor, penalty: Tensor) -> Tensor:
        """Return the discounted return of each token, float64 [T], 0 outside the responses.

        Args:
            rewards: [S], the step rewards included.
            penalty: [T], KL penalty of each token.
        """
        mask, step_rewards = batch.token("loss_mask").bool(), None
        if self._spec.credits_steps and TURN_REWARDS in batch.token_columns:
            step_rewards = batch.token(TURN_REWARDS).double()
        token_rewards = place_rewards(batch, rewards.double(), penalty.double(), step_rewards)
        no_values = torch.zeros_like(token_rewards)
        _, returns = gae(token_rewards, no_values, mask, batch.cu_seqlens, self._spec.gamma, lambda_=1.0)
        return returns
