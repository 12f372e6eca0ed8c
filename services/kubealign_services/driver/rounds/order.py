"""Row order of a round, new in each of its epochs. Pure."""

import torch
import xxhash


def rows_at(taken: int, count: int, rows: int, epochs: int, seed: int, number: int) -> list[int]:
    """Return the indices of the next `count` rows of a round, from `start` on; fewer at its end.

    The order of each epoch is drawn from the job's seed, the round's number and the epoch.
    """
    end = min(taken + count, rows * epochs)
    indices: list[int] = []
    while taken < end:
        epoch, position = divmod(taken, rows)
        until = min(rows, position + end - taken)
        indices += _order(rows, seed, number, epoch)[position:until]
        taken += until - position
    return indices


def _order(rows: int, seed: int, number: int, epoch: int) -> list[int]:
    key = xxhash.xxh3_64_intdigest(f"{seed}:round:{number}:{epoch}".encode()) >> 1
    order: list[int] = torch.randperm(rows, generator=torch.Generator().manual_seed(key)).tolist()
    return order
