"""What the ranks tell one another between passes: figures and columns. Nothing is pickled."""

import json

import torch
import torch.distributed as dist
from torch import Tensor


def all_figures(figures: dict[str, dict[str, float]], world_size: int) -> list[dict[str, dict[str, float]]]:
    """Each rank's named figures -> those of all ranks, in the order of ranks, the same on all."""
    if world_size == 1:
        return [figures]
    device = _device()
    mine = torch.frombuffer(bytearray(json.dumps(figures).encode()), dtype=torch.uint8)
    sizes = [torch.zeros(1, dtype=torch.int64, device=device) for _ in range(world_size)]
    dist.all_gather(sizes, torch.tensor([len(mine)], device=device))
    longest = max(int(size) for size in sizes)
    padded = torch.zeros(longest, dtype=torch.uint8)
    padded[: len(mine)] = mine
    pieces = [torch.zeros(longest, dtype=torch.uint8, device=device) for _ in range(world_size)]
    dist.all_gather(pieces, padded.to(device))
    return [
        json.loads(piece[: int(size)].cpu().numpy().tobytes())
        for piece, size in zip(pieces, sizes, strict=True)
    ]


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
