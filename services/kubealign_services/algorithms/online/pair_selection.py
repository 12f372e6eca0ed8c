"""Selection of one preference pair from each group of samples. Pure."""

import torch
from torch import Tensor

#: Marks of the samples of a group: the chosen one, the rejected one, and all others.
CHOSEN, REJECTED, UNPAIRED = 1, -1, 0


def select_pairs(rewards: Tensor, group: Tensor) -> Tensor:
    """Mark the best and the worst sample of each group, int8 [S]: CHOSEN, REJECTED or UNPAIRED.

    Of equal rewards the sample that comes first is the best, and the one that comes last the worst. A group
    whose rewards are all equal, or of one sample, has no pair.

    Args:
        rewards: [S], finite.
        group: int64 [S], any numbers, in any order; groups may differ in size.
    """
    _, group_index = torch.unique(group, return_inverse=True)
    groups = int(group_index.max()) + 1 if len(group_index) else 0

    def extreme(values: Tensor, reduction: str) -> Tensor:
        """Return each group's extreme value, at each of the samples, [S]."""
        result = values.new_empty(groups)
        result = result.scatter_reduce(0, group_index, values, reduction, include_self=False)
        return result[group_index]

    highest, lowest = extreme(rewards, "amax"), extreme(rewards, "amin")
    position, differs = torch.arange(len(rewards)), highest > lowest
    # Samples without the extreme reward get a position that is never the extreme one.
    best = extreme(torch.where(rewards == highest, position, len(rewards)), "amin")
    worst = extreme(torch.where(rewards == lowest, position, -1), "amax")
    marks = torch.full((len(rewards),), UNPAIRED, dtype=torch.int8)
    marks[differs & (position == best)] = CHOSEN
    marks[differs & (position == worst)] = REJECTED
    return marks


def trained_samples(marks: Tensor, group: Tensor) -> Tensor:
    """Return True for the samples that stay in the batch, bool [S]: two of every group.

    These are the pair or, in a group without a pair, the first two samples, so that the number of sequences
    of a step does not depend on the rewards. A group of one sample has none.

    Args:
        marks: Result of `select_pairs`, [S].
        group: int64 [S].
    """
    _, group_index, counts = torch.unique(group, return_inverse=True, return_counts=True)
    paired = torch.zeros(len(counts), dtype=torch.int64).index_add(0, group_index, marks.abs().long()) > 0
    order = torch.argsort(group_index, stable=True)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order)) - (counts.cumsum(0) - counts)[group_index[order]]
    stands_in = ~paired[group_index] & (counts[group_index] > 1) & (rank < 2)
    stays: Tensor = (marks != UNPAIRED) | stands_in
    return stays
