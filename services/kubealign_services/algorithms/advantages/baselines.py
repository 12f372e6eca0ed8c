"""Reward baselines from the other samples of a group."""

import torch
from torch import Tensor


def leave_one_out_mean(rewards: Tensor, group: Tensor) -> Tensor:
    """Return the mean reward of the other samples of each sample's group, [S] (Kool et al. 2019; Ahmadian et
    al. 2024).

        b_i = (sum of the group - r_i) / (n - 1)

    A sample that is alone in its group gets its own reward as baseline, so that its advantage is 0.

    Args:
        rewards: [S].
        group: int64 [S], any numbers, in any order; groups may differ in size.
    """
    group_index, counts = _group_indices(group)
    totals = _group_sums(rewards, group_index, len(counts))
    other_count = (counts[group_index] - 1).to(rewards.dtype)
    return torch.where(other_count > 0, (totals[group_index] - rewards) / other_count.clamp(min=1), rewards)


def group_mean_and_std(rewards: Tensor, group: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation (n - 1 in the denominator) of each sample's group, both [S].

    The standard deviation is 0 for a group of one.
    """
    group_index, counts = _group_indices(group)
    sizes = counts.to(rewards.dtype)
    means = (_group_sums(rewards, group_index, len(counts)) / sizes)[group_index]
    squares = _group_sums((rewards - means).square(), group_index, len(counts))
    return means, (squares / (sizes - 1).clamp(min=1)).sqrt()[group_index]


def constant_group_share(rewards: Tensor, group: Tensor) -> float:
    """Return the share of groups whose samples all have the same reward and so carry no learning signal."""
    group_index, counts = _group_indices(group)
    low = torch.full((len(counts),), torch.inf, dtype=rewards.dtype)
    low = low.scatter_reduce(0, group_index, rewards, "amin")
    high = torch.full((len(counts),), -torch.inf, dtype=rewards.dtype)
    high = high.scatter_reduce(0, group_index, rewards, "amax")
    return float((low == high).double().mean())


def _group_indices(group: Tensor) -> tuple[Tensor, Tensor]:
    _, group_index, counts = torch.unique(group, return_inverse=True, return_counts=True)
    return group_index, counts


def _group_sums(values: Tensor, group_index: Tensor, groups: int) -> Tensor:
    return torch.zeros(groups, dtype=values.dtype).index_add(0, group_index, values)
