"""The default process group of a model's ranks, and collectives on metrics, columns and bytes. No pickle."""

import datetime
import json

import torch
import torch.distributed as dist
from torch import Tensor


def ensure_process_group(world_size: int) -> None:
    """Create the process group of a single rank if none exists.

    Raises ValueError when the process group has another size, RuntimeError when several ranks have none.
    """
    if not dist.is_initialized():
        if world_size > 1:
            raise RuntimeError(
                f"{world_size} ranks have no process group: join a CommandGroup before making the backend"
            )
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
            store=dist.HashStore(),  # type: ignore[attr-defined]
            rank=0,
            world_size=1,
            timeout=datetime.timedelta(minutes=10),
        )
    if dist.get_world_size() != world_size:
        raise ValueError(
            f"the process group has {dist.get_world_size()} ranks, the backend was given {world_size}"
        )


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
