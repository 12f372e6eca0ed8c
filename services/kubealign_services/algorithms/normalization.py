"""Normalisation of returns to advantages: centering and scaling."""

from torch import Tensor

from kubealign.spec.algorithms import Center, Normalization, Scale
from kubealign_services.algorithms.baselines import group_moments, leave_one_out


def normalized(returns: Tensor, group: Tensor, spec: Normalization) -> Tensor:
    """Compute (return - center) / (scale + epsilon), [N], in the dtype of returns: AReaL's NormConfig (Fu et
    al. 2025).

    Args:
        returns: [N], of sequences, or of the response tokens of a step.
        group: int64 [N], any numbers.
    """
    return scaled(centered(returns, group, spec.center), group, spec)


def centered(returns: Tensor, group: Tensor, center: Center) -> Tensor:
    """Subtract the center from returns.

    Batch: the mean of all entries; Group: the mean of the group; LeaveOneOut: the mean of the others of
    the group (an entry that is alone becomes 0).
    """
    if center is Center.NONE:
        return returns
    if center is Center.BATCH:
        return returns - returns.mean()
    if center is Center.GROUP:
        return returns - group_moments(returns, group)[0]
    return returns - leave_one_out(returns, group)


def scaled(rest: Tensor, group: Tensor, spec: Normalization) -> Tensor:
    """Divide by epsilon plus the standard deviation of `rest` (n - 1 in its denominator; 0 for an entry that
    is alone).
    """
    if spec.scale is Scale.NONE:
        return rest
    if spec.scale is Scale.GROUP:
        return rest / (group_moments(rest, group)[1] + spec.epsilon)
    deviation = rest.std() if len(rest) > 1 else rest.new_zeros(())
    return rest / (deviation + spec.epsilon)
