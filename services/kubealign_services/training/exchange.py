"""All-gather of bytes between the ranks of a group. No pickle."""

import torch
import torch.distributed as dist


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
