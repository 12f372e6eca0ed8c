"""REINFORCE++: PPO's clipped loss without a critic."""

from torch import Tensor

from kubealign.spec.algorithms import AdvantageCenter, AdvantageScale
from kubealign_services.algorithms.advantages.gae import gae
from kubealign_services.algorithms.advantages.normalization import divide_by_scale, subtract_center
from kubealign_services.algorithms.advantages.statistics import advantage_metrics
from kubealign_services.algorithms.online.base import ClippedOnlineAlgorithm
from kubealign_services.batch.packed import Batch


class ReinforcePlusPlusAlgorithm(ClippedOnlineAlgorithm):
    """Hu et al. 2025, "REINFORCE++: Stabilizing Critic-Free Policy Optimization with Global Advantage
    Normalization".

    PPO's clipped loss without its critic. A token's return is the reward less the KL penalty from that
    token on:

        R_t = reward - beta * (sum over s >= t of KL_s)
        A_t = (R_t - mean) / (std + epsilon)        over all response tokens of the step

    With `advantage.center` Group (REINFORCE++-baseline) or LeaveOneOut the reward is first compared with
    its group's. With `advantage.scale` Batch the rest is normalised over all response tokens of the step,
    where long responses weigh more, so that its mean is not 0 yet:

        R_t = reward - mean reward of the group - beta * (sum over s >= t of KL_s)
        A_t = (R_t - mean) / (std + epsilon)

        loss = mean over all response tokens of -min(r_t A_t, clip(r_t, 1 - low, 1 + high) A_t)
    """

    def compute_advantages(
        self, batch: Batch, rewards: Tensor, penalty: Tensor
    ) -> tuple[dict[str, Tensor], dict[str, float]]:
        norm, group = self._entry.advantage, batch.sequence("group")
        mask, sequence_index = batch.token("loss_mask").bool(), batch.sequence_of_token
        dtype = batch.token("behaviour_logprobs").dtype
        among_samples = norm.center in (AdvantageCenter.GROUP, AdvantageCenter.LEAVE_ONE_OUT)
        centered_rewards = subtract_center(rewards, group, norm.center) if among_samples else rewards

        zeros = penalty.new_zeros(penalty.shape)
        to_go, _ = gae(penalty, zeros, mask, batch.cu_seqlens, gamma=1.0, lambda_=1.0)
        token_returns, groups = (centered_rewards[sequence_index] - to_go)[mask], group[sequence_index][mask]
        center = norm.center
        if among_samples:
            center = AdvantageCenter.BATCH if norm.scale is AdvantageScale.BATCH else AdvantageCenter.NONE
        centered_returns = subtract_center(token_returns, groups, center)
        returns = (rewards[sequence_index] - to_go)[mask]
        advantages = zeros.to(dtype)
        advantages[mask] = divide_by_scale(centered_returns, returns, groups, norm).to(dtype)
        return {"advantages": advantages}, advantage_metrics(advantages[mask], returns)
