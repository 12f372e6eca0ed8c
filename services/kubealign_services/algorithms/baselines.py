"""What a sample's reward is compared with: the other samples of its group."""

import torch
from torch import Tensor


def leave_one_out(rewards: Tensor, group: Tensor) -> Tensor:
    """Mean reward of the other samples of each sample's group, [S] (Kool et al. 2019; Ahmadian et al. 2024).

        b_i = (sum of the group - r_i) / (n - 1)

    A sample that is alone in its group has its own reward as baseline, so that its advantage is 0.
    rewards: [S]. group: int64 [S], any numbers, in any order; groups may differ in size.
    """
    which, counts = _groups(group)
    totals = _sums(rewards, which, len(counts))
    others = (counts[which] - 1).to(rewards.dtype)
    return torch.where(others > 0, (totals[which] - rewards) / others.clamp(min=1), rewards)


def group_moments(rewards: Tensor, group: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation (n - 1 in the denominator) of each sample's group, both [S]; std 0 for a
    group of one."""
    which, counts = _groups(group)
    sizes = counts.to(rewards.dtype)
    means = (_sums(rewards, which, len(counts)) / sizes)[which]
    squares = _sums((rewards - means).square(), which, len(counts))
    return means, (squares / (sizes - 1).clamp(min=1)).sqrt()[which]


def constant_share(rewards: Tensor, group: Tensor) -> float:
    """Share of the groups whose samples all have the same reward, and so teach nothing."""
    which, counts = _groups(group)
    low = torch.full((len(counts),), torch.inf, dtype=rewards.dtype).scatter_reduce(0, which, rewards, "amin")
    high = torch.full((len(counts),), -torch.inf, dtype=rewards.dtype).scatter_reduce(
        0, which, rewards, "amax"
    )
    return float((low == high).double().mean())


def _groups(group: Tensor) -> tuple[Tensor, Tensor]:
    _, which, counts = torch.unique(group, return_inverse=True, return_counts=True)
    return which, counts


def _sums(values: Tensor, which: Tensor, groups: int) -> Tensor:
    return torch.zeros(groups, dtype=values.dtype).index_add(0, which, values)
