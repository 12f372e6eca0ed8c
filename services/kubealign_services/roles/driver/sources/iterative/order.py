"""Row order of a round, new in each of its epochs. Pure."""

import torch
import xxhash


def select_row_indices(start: int, count: int, rows: int, epochs: int, seed: int, number: int) -> list[int]:
    """Return the indices of the next `count` rows of a round, from `start` on; fewer at its end.

    The order of each epoch is drawn from the job's seed, the round's number and the epoch.
    """
    end = min(start + count, rows * epochs)
    indices: list[int] = []
    while start < end:
        epoch, position = divmod(start, rows)
        until = min(rows, position + end - start)
        indices += _epoch_order(rows, seed, number, epoch)[position:until]
        start += until - position
    return indices


def _epoch_order(rows: int, seed: int, number: int, epoch: int) -> list[int]:
    key = xxhash.xxh3_64_intdigest(f"{seed}:round:{number}:{epoch}".encode()) >> 1
    order: list[int] = torch.randperm(rows, generator=torch.Generator().manual_seed(key)).tolist()
    return order
