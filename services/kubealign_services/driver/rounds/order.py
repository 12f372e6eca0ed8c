"""The order in which a round's rows are taken: a new one for each of its epochs. Pure."""

import torch
import xxhash


def rows_at(taken: int, count: int, rows: int, epochs: int, seed: int, number: int) -> list[int]:
    """Indices of the next `count` of a round's rows after `taken`; fewer at its end.

    Each epoch's order is drawn from the job's seed, the round's number and the epoch."""
    end = min(taken + count, rows * epochs)
    drawn: list[int] = []
    while taken < end:
        epoch, position = divmod(taken, rows)
        until = min(rows, position + end - taken)
        drawn += _order(rows, seed, number, epoch)[position:until]
        taken += until - position
    return drawn


def _order(rows: int, seed: int, number: int, epoch: int) -> list[int]:
    key = xxhash.xxh3_64_intdigest(f"{seed}:round:{number}:{epoch}".encode()) >> 1
    order: list[int] = torch.randperm(rows, generator=torch.Generator().manual_seed(key)).tolist()
    return order
