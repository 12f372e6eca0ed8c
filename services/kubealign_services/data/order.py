"""The order in which rows are taken: one permutation an epoch, drawn from the seed. Pure.

Everything follows from (seed, epoch), so a cursor is all that a resumed job needs to go on where it was.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
import xxhash


@dataclass(frozen=True)
class Cursor:
    """The next row to take: its epoch, and its position in that epoch's order. Both from 0."""

    epoch: int = 0
    position: int = 0


class Draw(NamedTuple):
    """One row taken: in which epoch, and its index among the rows (0 to rows - 1)."""

    epoch: int
    row: int


def permutation(rows: int, seed: int, epoch: int) -> tuple[int, ...]:
    """The order of `rows` rows in an epoch: each index from 0 to rows - 1 once."""
    return _permutation(rows, seed, epoch)


def take(
    cursor: Cursor, count: int, rows: int, seed: int, shuffle: bool = True, max_epochs: int | None = None
) -> tuple[list[Draw], Cursor]:
    """The next `count` rows and the cursor after them; fewer, at last none, once `max_epochs` are done.

    A cursor that is returned never stands at the end of an epoch: it stands at the start of the next one.
    Raises ValueError where there are no rows, or the cursor lies outside of them (the data has changed).
    """
    if rows < 1:
        raise ValueError("there are no rows to take from")
    if cursor.epoch < 0 or not 0 <= cursor.position < rows:
        raise ValueError(
            f"{cursor} does not fit {rows} rows: the data is not what it was when the cursor was kept"
        )
    taken: list[Draw] = []
    epoch, position = cursor.epoch, cursor.position
    while len(taken) < count and (max_epochs is None or epoch < max_epochs):
        end = min(rows, position + count - len(taken))
        indices = permutation(rows, seed, epoch)[position:end] if shuffle else range(position, end)
        taken.extend(Draw(epoch, index) for index in indices)
        epoch, position = (epoch + 1, 0) if end == rows else (epoch, end)
    return taken, Cursor(epoch, position)


# Two: a step may reach into the next epoch.
@lru_cache(maxsize=2)
def _permutation(rows: int, seed: int, epoch: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(xxhash.xxh3_64_intdigest(f"{seed}:order:{epoch}".encode()) >> 1)
    return tuple(torch.randperm(rows, generator=generator).tolist())
