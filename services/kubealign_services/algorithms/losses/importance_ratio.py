"""Importance ratio between policy and old policy, per token or per response."""

from dataclasses import dataclass

import torch
from torch import Tensor

from kubealign.spec.algorithms import RatioLevel


@dataclass(frozen=True)
class ActionLogRatio:
    """Log ratios, both [N], one entry per response token.

    value: the logarithm of the ratio, with gradient. action_share: the token's share of its response's
    action.
    """

    value: Tensor
    action_share: Tensor


def compute_log_ratios(difference: Tensor, sequence: Tensor, level: RatioLevel) -> ActionLogRatio:
    """Compute log ratios from d_t = log p - log p_old of each token of a response.

    With n tokens in the response:

        Token           d_t
        Sequence        sum of d         = log p(response) / p_old(response)
        SequenceMean    (sum of d) / n   (Zheng et al. 2025, "GSPO", eq. 7)

    A response's ratio is repeated at each of its tokens, with the token's own part of the gradient, so
    that tokens may differ in their advantages (GSPO-token, eq. 14: sg[s] p_t / sg[p_t]). Its mean over the
    tokens is the ratio, in value and in gradient. With Sequence the response is one action, which counts
    once: each of its tokens is 1 / n of the action; otherwise each token is one action.

    Args:
        difference: [N], with gradient.
        sequence: int64 [N], response index of each token, from 0, on the same device.
    """
    ones = torch.ones_like(difference.detach())
    if level is RatioLevel.TOKEN:
        return ActionLogRatio(difference, ones)
    own = difference.detach()
    zero_with_gradient = difference - own
    lengths, total = response_sums(ones, sequence), response_sums(own, sequence)
    if level is RatioLevel.SEQUENCE:
        return ActionLogRatio(total + lengths * zero_with_gradient, 1 / lengths)
    return ActionLogRatio(total / lengths + zero_with_gradient, ones)


def response_means(values: Tensor, sequence: Tensor) -> Tensor:
    """Return at each token the mean over its response, [N].

    Args:
        values: [N].
        sequence: Response index as in `compute_log_ratios`.
    """
    return response_sums(values, sequence) / response_sums(torch.ones_like(values.detach()), sequence)


def response_sums(values: Tensor, sequence: Tensor) -> Tensor:
    """Return at each token the sum over its response, [N].

    Args:
        values: [N].
        sequence: Response index as in `compute_log_ratios`.
    """
    empty = values.new_zeros(int(sequence.max()) + 1 if len(sequence) else 0)
    return empty.index_add(0, sequence, values)[sequence]
