"""Collectives on metrics, columns and bytes between passes. No pickle."""

import json

import torch
import torch.distributed as dist
from torch import Tensor

from kubealign_services.training.exchange import all_bytes


def all_figures(figures: dict[str, dict[str, float]], world_size: int) -> list[dict[str, dict[str, float]]]:
    """Gather each rank's named metrics, in the order of ranks, on all ranks."""
    if world_size == 1:
        return [figures]
    gathered = all_bytes(json.dumps(figures).encode(), world_size)
    return [json.loads(each) for each in gathered]


def summed(column: Tensor, world_size: int) -> Tensor:
    """Sum a CPU tensor over all ranks. Returns a CPU tensor."""
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
