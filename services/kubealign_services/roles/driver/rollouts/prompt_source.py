"""Prompt sources: the epochs of the data, or a fixed list."""

from collections.abc import Sequence
from typing import Protocol

from kubealign_services.data.epoch_shuffle import EpochCursor, take_rows
from kubealign_services.data.prepared import PreparedRow, PreparedRows


class PromptSource(Protocol):
    """Sequence of named prompts."""

    def next_prompt(self) -> str | None:
        """Return the next prompt's name; None when none is left."""

    def row(self, group_id: str) -> PreparedRow:
        """Return the row of a prompt name."""


class EpochPrompts:
    """Rows in epoch order, after the prompts that an earlier run left unfinished. Names are EPOCH/ROW."""

    def __init__(
        self,
        rows: PreparedRows,
        seed: int,
        shuffle: bool,
        cursor: EpochCursor,
        unfinished: Sequence[str],
        max_epochs: int | None = None,
    ) -> None:
        self._rows = rows
        self._seed = seed
        self._shuffle = shuffle
        self._max_epochs = max_epochs
        self.cursor = cursor
        self.unfinished = list(unfinished)

    def next_prompt(self) -> str | None:
        if self.unfinished:
            return self.unfinished.pop(0)
        taken, self.cursor = take_rows(
            self.cursor, 1, len(self._rows), self._seed, self._shuffle, self._max_epochs
        )
        return f"{taken[0].epoch}/{taken[0].row}" if taken else None

    def row(self, group_id: str) -> PreparedRow:
        return self._rows[int(group_id.rpartition("/")[2])]


class ListPrompts:
    """All rows once, in order. Names are PREFIX/ROW."""

    def __init__(self, rows: PreparedRows, prefix: str) -> None:
        self._rows = rows
        self._prefix = prefix
        self._position = 0

    def next_prompt(self) -> str | None:
        if self._position >= len(self._rows):
            return None
        self._position += 1
        return f"{self._prefix}/{self._position - 1}"

    def row(self, group_id: str) -> PreparedRow:
        return self._rows[int(group_id.rpartition("/")[2])]
