"""Normalisation of returns to advantages: centering and scaling."""

from torch import Tensor

from kubealign.spec.algorithms import AdvantageCenter, AdvantageNormalization, AdvantageScale
from kubealign_services.algorithms.advantages.baselines import group_mean_and_std, leave_one_out_mean


def normalize(returns: Tensor, group: Tensor, spec: AdvantageNormalization) -> Tensor:
    """Compute (return - center) / (scale + epsilon), [N], in the dtype of returns: AReaL's NormConfig (Fu et
    al. 2025).

    Args:
        returns: [N], of sequences, or of the response tokens of a step.
        group: int64 [N], any numbers.
    """
    return divide_by_scale(subtract_center(returns, group, spec.center), group, spec)


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


def divide_by_scale(rest: Tensor, group: Tensor, spec: AdvantageNormalization) -> Tensor:
    """Divide by epsilon plus the standard deviation of `rest` (n - 1 in its denominator; 0 for an entry that
    is alone).
    """
    if spec.scale is AdvantageScale.NONE:
        return rest
    if spec.scale is AdvantageScale.GROUP:
        return rest / (group_mean_and_std(rest, group)[1] + spec.epsilon)
    deviation = rest.std() if len(rest) > 1 else rest.new_zeros(())
    return rest / (deviation + spec.epsilon)
