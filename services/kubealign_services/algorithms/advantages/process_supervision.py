"""Process supervision: advantages from the rewards of the steps of responses, or of the turns of episodes."""

import torch
from torch import Tensor

from kubealign.spec.algorithms import AdvantageNormalization
from kubealign_services.algorithms.advantages.baselines import group_mean_and_std
from kubealign_services.algorithms.advantages.gae import gae
from kubealign_services.algorithms.advantages.normalization import normalize
from kubealign_services.batch.packed import Batch, sequence_sums
from kubealign_services.batch.reward_columns import TURN_ENDS, TURN_REWARDS

#: Differences between sums of float32 rewards below this share of their size are rounding errors.
_ROUNDING = 1e-5


def process_advantages(batch: Batch, returns: Tensor, spec: AdvantageNormalization) -> Tensor:
    """Compute the advantages of tokens, float64 [T], 0 outside the responses (Shao et al. 2024,
    "DeepSeekMath", arXiv:2402.03300, section 4.1.3).

    All step rewards r_j of all responses to a prompt are normalised together, and a token has the sum over
    the steps of its response that end at the token or after it:

        z_j = (r_j - mean) / (std + epsilon)        (std with n - 1; without scale: r_j - mean)
        A_t = sum over the steps j with end_j >= t of z_j + (rest_i - mean rest) / (std of rest + epsilon)

    The paper has no rest: the part of a response's return that belongs to no step, such as other rewards. It
    is normalised over the group as the reward of the whole response. Rewards of several sources at one token
    are one step.

    Reads the token columns loss_mask, turn_rewards and turn_ends (a batch without the last two has no steps)
    and the sequence column group.

    Args:
        returns: Floating [S], the step rewards included.
        spec: Center Group and scale Group or None.
    """
    mask, group = batch.token("loss_mask").bool(), batch.sequence("group")
    rest = returns.double()
    to_go = torch.zeros(len(mask), dtype=torch.float64)
    if TURN_REWARDS in batch.token_columns:
        rewards, ends = batch.token(TURN_REWARDS).double(), batch.token(TURN_ENDS).bool()
        rest = _remove_steps(rest, rewards, batch)
        normalised = torch.zeros_like(to_go)
        normalised[ends] = normalize(rewards[ends], group[batch.sequence_of_token][ends], spec)
        to_go, _ = gae(normalised, torch.zeros_like(to_go), mask, batch.cu_seqlens, gamma=1.0, lambda_=1.0)
    return (to_go + normalize(rest, group, spec)[batch.sequence_of_token]).where(mask, 0.0)


def _remove_steps(returns: Tensor, rewards: Tensor, batch: Batch) -> Tensor:
    """Return returns [S] less the step rewards of each response.

    Differences from the group's mean that are rounding errors are removed: a division by their own deviation
    would make advantages of them.
    """
    rest = returns - sequence_sums(rewards, batch)
    mean, _ = group_mean_and_std(rest, batch.sequence("group"))
    size = returns.abs() + sequence_sums(rewards.abs(), batch)
    return torch.where((rest - mean).abs() <= _ROUNDING * size.max(), mean, rest)
