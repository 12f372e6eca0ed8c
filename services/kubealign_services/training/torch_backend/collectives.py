"""What the ranks tell one another between passes: figures and columns. Nothing is pickled."""

import json

import torch
import torch.distributed as dist
from torch import Tensor

from kubealign_services.training.exchange import all_bytes


def all_figures(figures: dict[str, dict[str, float]], world_size: int) -> list[dict[str, dict[str, float]]]:
    """Each rank's named figures -> those of all ranks, in the order of ranks, the same on all."""
    if world_size == 1:
        return [figures]
    said = all_bytes(json.dumps(figures).encode(), world_size)
    return [json.loads(each) for each in said]


def summed(column: Tensor, world_size: int) -> Tensor:
    """A CPU tensor -> its sum over all ranks, on the CPU."""
    if world_size == 1:
        return column
    moved = column.to(_device())
    dist.all_reduce(moved)
    return moved.cpu()


def _device() -> torch.device:
    return (
        torch.device("cuda", torch.cuda.current_device())
        if torch.cuda.is_available()
        else torch.device("cpu")
    )
