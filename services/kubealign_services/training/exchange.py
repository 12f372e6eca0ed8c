"""What each rank of a group has to say, told to all: bytes, never pickled."""

import torch
import torch.distributed as dist


def all_bytes(mine: bytes, world_size: int) -> list[bytes]:
    """Each rank's bytes, in the order of ranks, the same on all; collective over the default process group.

    On the CPU: the group's gloo carries them, whatever the model is computed on."""
    if world_size == 1:
        return [mine]
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(world_size)]
    dist.all_gather(sizes, torch.tensor([len(mine)]))
    longest = max(1, *(int(size) for size in sizes))
    padded = torch.zeros(longest, dtype=torch.uint8)
    if mine:
        padded[: len(mine)] = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
    pieces = [torch.zeros(longest, dtype=torch.uint8) for _ in range(world_size)]
    dist.all_gather(pieces, padded)
    return [piece[: int(size)].numpy().tobytes() for piece, size in zip(pieces, sizes, strict=True)]
