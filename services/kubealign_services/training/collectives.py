"""Collectives on metrics, columns and bytes between passes. No pickle."""

import json

import torch
import torch.distributed as dist
from torch import Tensor


def all_gather_bytes(payload: bytes, world_size: int) -> list[bytes]:
    """Gather each rank's bytes, in the order of ranks, on all ranks; collective over the default process
    group.

    Runs on the CPU through the group's gloo backend, whatever device the model uses.
    """
    if world_size == 1:
        return [payload]
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(world_size)]
    dist.all_gather(sizes, torch.tensor([len(payload)]))
    longest = max(1, *(int(size) for size in sizes))
    padded = torch.zeros(longest, dtype=torch.uint8)
    if payload:
        padded[: len(payload)] = torch.frombuffer(bytearray(payload), dtype=torch.uint8)
    pieces = [torch.zeros(longest, dtype=torch.uint8) for _ in range(world_size)]
    dist.all_gather(pieces, padded)
    return [piece[: int(size)].numpy().tobytes() for piece, size in zip(pieces, sizes, strict=True)]


def all_gather_metrics(
    metrics: dict[str, dict[str, float]], world_size: int
) -> list[dict[str, dict[str, float]]]:
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
