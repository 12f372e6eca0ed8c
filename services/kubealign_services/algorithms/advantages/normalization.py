"""Normalisation of returns to advantages: centering and scaling."""

from torch import Tensor

from kubealign.spec.algorithms import AdvantageCenter, AdvantageNormalization, AdvantageScale
from kubealign_services.algorithms.advantages.baselines import group_mean_and_std, leave_one_out_mean
from kubealign_services.algorithms.advantages.pass_at_k import pass_at_k_advantages


def normalize(returns: Tensor, group: Tensor, spec: AdvantageNormalization) -> Tensor:
    """Compute (return - center) / (scale + epsilon), [N], in the dtype of returns: AReaL's NormConfig (Fu et
    al. 2025); with pass_at_k `pass_at_k_advantages`.

    Args:
        returns: [N], of sequences, or of the response tokens of a step.
        group: int64 [N], any numbers.
    """
    if spec.pass_at_k is not None:
        return pass_at_k_advantages(returns, group, spec.pass_at_k, spec)
    return divide_by_scale(subtract_center(returns, group, spec.center), returns, group, spec)


def subtract_center(returns: Tensor, group: Tensor, center: AdvantageCenter) -> Tensor:
    """Subtract the center from returns.

    Batch: the mean of all entries; Group: the mean of the group; LeaveOneOut: the mean of the others of
    the group (an entry that is alone becomes 0).
    """
    if center is AdvantageCenter.NONE:
        return returns
    if center is AdvantageCenter.BATCH:
        return returns - returns.mean()
    if center is AdvantageCenter.GROUP:
        return returns - group_mean_and_std(returns, group)[0]
    return returns - leave_one_out_mean(returns, group)


def divide_by_scale(rest: Tensor, returns: Tensor, group: Tensor, spec: AdvantageNormalization) -> Tensor:
    """Divide the centred returns `rest` by epsilon plus a standard deviation (n - 1 in its denominator; 0 for
    an entry that is alone).

    Batch: that of `rest`. BatchOfReturns: that of `returns`, as TRL's GRPOTrainer for scale_rewards="batch".
    Group: that of each group of `rest`. GroupMean: by the mean of each group of `returns` (Tajwar et al.
    2026, "Maximum Likelihood Reinforcement Learning", arXiv:2602.02710; TRL's MaxRLTrainer).

    Raises ValueError for GroupMean where the mean of a group is negative.

    Args:
        rest: [N].
        returns: [N], before centering.
        group: int64 [N], any numbers.
    """
    if spec.scale is AdvantageScale.NONE:
        return rest
    if spec.scale is AdvantageScale.GROUP:
        return rest / (group_mean_and_std(rest, group)[1] + spec.epsilon)
    if spec.scale is AdvantageScale.GROUP_MEAN:
        mean, _ = group_mean_and_std(returns, group)
        if bool((mean < 0).any()):
            raise ValueError(
                "advantage.scale GroupMean divides by a group's mean return, which is "
                f"{float(mean.min()):g}: it needs returns of 0 or more; set scale to Group"
            )
        return rest / (mean + spec.epsilon)
    values = returns if spec.scale is AdvantageScale.BATCH_OF_RETURNS else rest
    deviation = values.std() if len(values) > 1 else values.new_zeros(())
    return rest / (deviation + spec.epsilon)
