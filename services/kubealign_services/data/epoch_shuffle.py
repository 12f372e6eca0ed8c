"""Row order: one permutation per epoch, drawn from the seed. Pure.

The order is a function of (seed, epoch), so a cursor is sufficient for a job to resume.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
import xxhash


@dataclass(frozen=True)
class EpochCursor:
    """Position of the next row: its epoch, and its index in that epoch's order. Both from 0."""

    epoch: int = 0
    position: int = 0


class RowDraw(NamedTuple):
    """One drawn row: its epoch, and its index among the rows (0 to rows - 1)."""

    epoch: int
    row: int


def permutation(rows: int, seed: int, epoch: int) -> tuple[int, ...]:
    """Return the order of `rows` rows in an epoch: each index from 0 to rows - 1 once."""
    return _permutation(rows, seed, epoch)


def take_rows(
    cursor: EpochCursor, count: int, rows: int, seed: int, shuffle: bool = True, max_epochs: int | None = None
) -> tuple[list[RowDraw], EpochCursor]:
    """Return the next `count` rows and the cursor after them; fewer, finally none, once `max_epochs` are
    done.

    A returned cursor is never at the end of an epoch but at the start of the next one. Raises ValueError
    where there are no rows, or the cursor is out of range (the data has changed).
    """
    if rows < 1:
        raise ValueError("there are no rows to take from")
    if cursor.epoch < 0 or not 0 <= cursor.position < rows:
        raise ValueError(
            f"{cursor} does not fit {rows} rows: the data has changed since the cursor was saved"
        )
    taken: list[RowDraw] = []
    epoch, position = cursor.epoch, cursor.position
    while len(taken) < count and (max_epochs is None or epoch < max_epochs):
        end = min(rows, position + count - len(taken))
        indices = permutation(rows, seed, epoch)[position:end] if shuffle else range(position, end)
        taken.extend(RowDraw(epoch, index) for index in indices)
        epoch, position = (epoch + 1, 0) if end == rows else (epoch, end)
    return taken, EpochCursor(epoch, position)


# Two entries: a step may span two epochs.
@lru_cache(maxsize=2)
def _permutation(rows: int, seed: int, epoch: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(xxhash.xxh3_64_intdigest(f"{seed}:order:{epoch}".encode()) >> 1)
    return tuple(torch.randperm(rows, generator=generator).tolist())
