"""The ranks of a context group, which compute the same microbatches together, and their collectives."""

import datetime
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from kubealign_services.training.collectives import ensure_process_group


@dataclass(frozen=True)
class ContextGroup:
    """Ranks that share the tokens of each pack.

    Attributes:
        size: Number of ranks, above 1.
        index: Index of this rank among them, from 0.
        group: Their process group.
    """

    size: int
    index: int
    group: dist.ProcessGroup

    def sum_column(self, column: Tensor) -> Tensor:
        """Sum the ranks' columns of one shape. Returns the same on all ranks. Collective.

        The gradient of each rank's column is that of the sum, unchanged: all ranks compute one and the same
        loss from the sum, and each backpropagates it to its own column only. So the gradients of the ranks
        add up to that of one loss, not of `size` losses.
        """
        total: Tensor = _SumOfColumns.apply(column, self.group)
        return total


def join_context_group(size: int, world_size: int, timeout: float) -> ContextGroup | None:
    """Create the context groups of `size` consecutive ranks each, and return this rank's; None for a size
    of 1.

    Collective over all ranks. Raises ValueError when the groups do not divide the ranks, and what
    `ensure_process_group` raises.

    Args:
        timeout: Seconds that the ranks wait for one another within a collective.
    """
    if size == 1:
        return None
    if world_size % size:
        raise ValueError(
            f"backend.torch.contextParallel: {size}; it must divide the ranks, of which there are "
            f"{world_size}"
        )
    ensure_process_group(world_size)
    group, _ = dist.new_subgroups(group_size=size, timeout=datetime.timedelta(seconds=timeout))
    assert group is not None
    return ContextGroup(size, dist.get_rank(group), group)


class _SumOfColumns(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, column: Tensor, group: dist.ProcessGroup) -> Tensor:
        total = column.clone()
        dist.all_reduce(total, group=group)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None
