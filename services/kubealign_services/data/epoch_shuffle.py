"""Row order: one permutation per epoch, drawn from the seed. Pure.

The order is a function of (seed, epoch), so a cursor is sufficient for a job to resume.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple, Protocol

import torch
import xxhash
from torch import Tensor


@dataclass(frozen=True)
class EpochCursor:
    """Position of the next row: its epoch, and its index in that epoch's order. Both from 0."""

    epoch: int = 0
    position: int = 0


class RowDraw(NamedTuple):
    """One drawn row: the pass over its source, and its index among all rows (0 to rows - 1).

    A pass draws each row of the source once, so no two draws of a job are equal. Without a mixture the
    passes are the epochs.
    """

    source_pass: int
    row: int


class RowOrder(Protocol):
    """Order in which the rows of a data set are drawn: a function of the seed and the epoch."""

    @property
    def rows(self) -> int:
        """Number of draws of an epoch."""

    @property
    def names(self) -> Sequence[str]:
        """Names of the sources of a mixture; none if the data is no mixture."""

    def source_of(self, row: int) -> str | None:
        """Return the name of the source of a row; None if the data is no mixture."""

    def draws(self, epoch: int, first: int, end: int) -> list[RowDraw]:
        """Return the draws of an epoch from position `first` up to, not including, `end`."""


@dataclass(frozen=True)
class DatasetOrder:
    """Order of the rows of one source: each epoch has each row once."""

    rows: int
    seed: int
    shuffle: bool = True

    @property
    def names(self) -> Sequence[str]:
        return ()

    def source_of(self, row: int) -> str | None:
        return None

    def draws(self, epoch: int, first: int, end: int) -> list[RowDraw]:
        indices = permutation(self.rows, self.seed, epoch) if self.shuffle else range(self.rows)
        return [RowDraw(epoch, index) for index in indices[first:end]]


def permutation(rows: int, seed: int, epoch: int) -> tuple[int, ...]:
    """Return the order of `rows` rows in an epoch: each index from 0 to rows - 1 once."""
    return _permutation(rows, seed, epoch)


def random_order(rows: int, key: str) -> Tensor:
    """Return a permutation of `rows` indices, int64 [rows], that is a function of the key."""
    generator = torch.Generator().manual_seed(xxhash.xxh3_64_intdigest(key.encode()) >> 1)
    return torch.randperm(rows, generator=generator)


def take_rows(
    cursor: EpochCursor, count: int, order: RowOrder, max_epochs: int | None = None
) -> tuple[list[RowDraw], EpochCursor]:
    """Return the next `count` rows and the cursor after them; fewer, finally none, once `max_epochs` are
    done.

    A returned cursor is never at the end of an epoch but at the start of the next one. Raises ValueError
    where there are no rows, or the cursor is out of range (the data has changed).
    """
    rows = order.rows
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
        taken.extend(order.draws(epoch, position, end))
        epoch, position = (epoch + 1, 0) if end == rows else (epoch, end)
    return taken, EpochCursor(epoch, position)


# Two entries: a step may span two epochs.
@lru_cache(maxsize=2)
def _permutation(rows: int, seed: int, epoch: int) -> tuple[int, ...]:
    return tuple(random_order(rows, f"{seed}:order:{epoch}").tolist())
