"""Greedy response of each group as its baseline."""

import torch
from torch import Tensor

from kubealign_services.batch.auxiliary import trainable_mask
from kubealign_services.batch.packed import Batch


def greedy_baseline(rewards: Tensor, batch: Batch) -> Tensor:
    """Return for each sequence the reward of its group's auxiliary sequence, the greedily decoded response.

    Several auxiliary sequences are averaged. `rewards` and the result: [S]. Raises ValueError for a group
    without an auxiliary sequence.
    """
    is_baseline = ~trainable_mask(batch)
    numbers, group_index = torch.unique(batch.sequence("group"), return_inverse=True)
    counts = torch.zeros(len(numbers), dtype=rewards.dtype)
    counts = counts.index_add(0, group_index, is_baseline.to(rewards.dtype))
    if bool((counts == 0).any()):
        missing = numbers[counts == 0].tolist()
        raise ValueError(f"groups {missing} have no greedy response as baseline")
    totals = torch.zeros_like(counts).index_add(0, group_index[is_baseline], rewards[is_baseline])
    return (totals / counts)[group_index]
