"""The likeliest response as baseline."""

import torch
from torch import Tensor

from kubealign_services.batch.companions import is_learned
from kubealign_services.batch.packed import Batch


def greedy_rewards(rewards: Tensor, batch: Batch) -> Tensor:
    """The reward of each sequence's group's companion, its response of the likeliest tokens; the mean of
    several. rewards and the result: [S]. Raises ValueError for a group without a companion."""
    companion = ~is_learned(batch)
    numbers, which = torch.unique(batch.sequence("group"), return_inverse=True)
    counts = torch.zeros(len(numbers), dtype=rewards.dtype).index_add(0, which, companion.to(rewards.dtype))
    if bool((counts == 0).any()):
        missing = numbers[counts == 0].tolist()
        raise ValueError(f"groups {missing} have no response of the likeliest tokens to be compared with")
    totals = torch.zeros_like(counts).index_add(0, which[companion], rewards[companion])
    return (totals / counts)[which]
