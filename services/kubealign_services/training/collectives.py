"""Collectives on metrics, columns and bytes between passes. No pickle."""

import json

import torch
import torch.distributed as dist
from torch import Tensor

from kubealign_services.training.exchange import all_gather_bytes


def all_gather_metrics(metrics: dict[str, dict[str, float]], world_size: int) -> list[dict[str, dict[str, float]]]:
    """Gather each rank's named metrics, in the order of ranks, on all ranks."""
    if world_size == 1:
        return [metrics]
    gathered = all_gather_bytes(json.dumps(metrics).encode(), world_size)
    return [json.loads(each) for each in gathered]


def all_reduce_sum(column: Tensor, world_size: int) -> Tensor:
    """Sum a CPU tensor over all ranks. Returns a CPU tensor."""
    if world_size == 1:
        return column
    moved = column.to(_collective_device())
    dist.all_reduce(moved)
    return moved.cpu()


def _collective_device() -> torch.device:
    return (
        torch.device("cuda", torch.cuda.current_device())
        if torch.cuda.is_available()
        else torch.device("cpu")
    )
