"""REINFORCE++."""

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

    PPO's clipped loss without its critic. A token's return is the reward less what the KL takes from it on:

        R_t = reward - beta * (sum over s >= t of KL_s)
        A_t = (R_t - mean) / (std + epsilon)        over all response tokens of the step

    With `advantage.center` Group (REINFORCE++-baseline) or LeaveOneOut the reward is compared with its
    group's first, and what is left is divided by the step's deviation:

        R_t = reward - mean reward of the group - beta * (sum over s >= t of KL_s)

        loss = mean over all response tokens of -min(r_t A_t, clip(r_t, 1 - low, 1 + high) A_t)"""

    def judge(
        self, batch: Batch, rewards: Tensor, penalty: Tensor
    ) -> tuple[dict[str, Tensor], dict[str, float]]:
        how, group = self._entry.advantage, batch.sequence("group")
        mask, which = batch.token("loss_mask").bool(), batch.sequence_of_token
        dtype = batch.token("behaviour_logprobs").dtype
        among_samples = how.center in (Center.GROUP, Center.LEAVE_ONE_OUT)
        start = centered(rewards, group, how.center) if among_samples else rewards

        nothing = penalty.new_zeros(penalty.shape)
        to_go, _ = gae(penalty, nothing, mask, batch.cu_seqlens, gamma=1.0, lambda_=1.0)
        chosen, groups = (start[which] - to_go)[mask], group[which][mask]
        left = chosen if among_samples else centered(chosen, groups, how.center)
        advantages = nothing.to(dtype)
        advantages[mask] = scaled(left, groups, how).to(dtype)
        returns = (rewards[which] - to_go)[mask]
        return {"advantages": advantages}, advantage_figures(advantages[mask], returns)
