"""REINFORCE++: PPO's clipped loss without a critic."""

from torch import Tensor

from kubealign.spec.algorithms import Center
from kubealign_services.algorithms.figures import advantage_figures
from kubealign_services.algorithms.gae import gae
from kubealign_services.algorithms.normalization import centered, scaled
from kubealign_services.algorithms.online import ClippedOnline
from kubealign_services.batch.packed import Batch


class ReinforcePlusPlus(ClippedOnline):
    """Hu et al. 2025, "REINFORCE++: Stabilizing Critic-Free Policy Optimization with Global Advantage
    Normalization".

    PPO's clipped loss without its critic. A token's return is the reward less the KL penalty from that
    token on:

        R_t = reward - beta * (sum over s >= t of KL_s)
        A_t = (R_t - mean) / (std + epsilon)        over all response tokens of the step

    With `advantage.center` Group (REINFORCE++-baseline) or LeaveOneOut the reward is first compared with
    its group's, and the rest is divided by the step's standard deviation:

        R_t = reward - mean reward of the group - beta * (sum over s >= t of KL_s)

        loss = mean over all response tokens of -min(r_t A_t, clip(r_t, 1 - low, 1 + high) A_t)
    """

    def judge(
        self, batch: Batch, rewards: Tensor, penalty: Tensor
    ) -> tuple[dict[str, Tensor], dict[str, float]]:
        norm, group = self._entry.advantage, batch.sequence("group")
        mask, sequence_index = batch.token("loss_mask").bool(), batch.sequence_of_token
        dtype = batch.token("behaviour_logprobs").dtype
        among_samples = norm.center in (Center.GROUP, Center.LEAVE_ONE_OUT)
        centered_rewards = centered(rewards, group, norm.center) if among_samples else rewards

        zeros = penalty.new_zeros(penalty.shape)
        to_go, _ = gae(penalty, zeros, mask, batch.cu_seqlens, gamma=1.0, lambda_=1.0)
        token_returns, groups = (centered_rewards[sequence_index] - to_go)[mask], group[sequence_index][mask]
        centered_returns = token_returns if among_samples else centered(token_returns, groups, norm.center)
        advantages = zeros.to(dtype)
        advantages[mask] = scaled(centered_returns, groups, norm).to(dtype)
        returns = (rewards[sequence_index] - to_go)[mask]
        return {"advantages": advantages}, advantage_figures(advantages[mask], returns)
