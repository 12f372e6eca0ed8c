"""Advantages for the best of k responses instead of each response."""

from math import comb

import torch
from torch import Tensor

from kubealign.spec.algorithms import AdvantageNormalization, AdvantageScale


def pass_at_k_advantages(returns: Tensor, group: Tensor, k: int, spec: AdvantageNormalization) -> Tensor:
    """Compute advantages for the best of k responses to a prompt, [N] (Chen et al. 2025, "Pass@k Training for
    Adaptively Balancing Exploration and Exploitation of Large Reasoning Models", arXiv:2508.10751).

    Every subset of k of a group's n responses is rewarded with its best return, and a response has the mean
    advantage of the subsets that contain it, computed without drawing any. With the returns in ascending
    order, ranks from 1:

        mean best        M   = sum over j of C(j - 1, k - 1) R_j / C(n, k)
        best with i      B_i = (C(i - 1, k - 1) R_i + sum over j > i of C(j - 2, k - 2) R_j) / C(n - 1, k - 1)
        A_i                  = (B_i - M) / (s + epsilon),    s the standard deviation of the subsets' best

    For returns of 0 and 1, M is the unbiased estimate of pass@k. s is 1 with the scale None.

    Args:
        returns: [N], floating; the result has the same dtype.
        group: int64 [N], any numbers. A group with fewer than k responses has one subset: all of them.
        k: From 2.
    """
    advantages = torch.zeros_like(returns)
    for number in torch.unique(group):
        members = (group == number).nonzero().squeeze(1)
        values, order = returns[members].double().sort()
        estimate = _best_of_subsets(values, min(k, len(members)), spec)
        advantages[members[order]] = estimate.to(returns.dtype)
    return advantages


def _best_of_subsets(values: Tensor, k: int, spec: AdvantageNormalization) -> Tensor:
    """Return the advantages of one group's returns, which ascend, [n]."""
    n = len(values)
    as_best = torch.tensor([comb(rank, k - 1) for rank in range(n)], dtype=torch.float64)
    above = torch.tensor([comb(rank - 1, k - 2) if rank > 0 and k > 1 else 0 for rank in range(n)]).double()
    mean = (as_best * values).sum() / comb(n, k)
    # Sum over the ranks above each one.
    later = (above * values).flip(0).cumsum(0).flip(0) - above * values
    best_with = (as_best * values + later) / comb(n - 1, k - 1)
    if spec.scale is AdvantageScale.NONE:
        return best_with - mean
    variance = (as_best * (values - mean).square()).sum() / comb(n, k)
    return (best_with - mean) / (variance.sqrt() + spec.epsilon)
