"""Prompt sources: the epochs of the data, or a fixed list."""

from collections.abc import Sequence
from typing import Protocol

from kubealign_services.data.epoch_shuffle import EpochCursor, RowOrder, take_rows
from kubealign_services.data.prepared import PreparedRow, PreparedRows, row_index
from kubealign_services.data.streaming.row_stream import StreamState
from kubealign_services.roles.driver.rollouts.curriculum import Curriculum


class PromptSource(Protocol):
    """Sequence of named prompts."""

    async def next_prompt(self) -> str | None:
        """Return the next prompt's name; None when none is left."""

    def row(self, group_id: str) -> PreparedRow:
        """Return the row of a prompt name."""


class TrainingPrompts(PromptSource, Protocol):
    """Prompts, or rows, that a job trains on, and its position in them.

    unfinished: those that an earlier run left unfinished and that were not taken again yet.
    """

    cursor: EpochCursor
    unfinished: list[str]
    curriculum: Curriculum | None

    @property
    def source_names(self) -> Sequence[str]:
        """Names of the sources of a mixture; none if the data is no mixture."""

    def source_of(self, group_id: str) -> str | None:
        """Return the name of the source of a prompt name; None if the data is no mixture."""

    def commit(self, unfinished: Sequence[str]) -> StreamState | None:
        """Return the state of streamed rows for the state of a step; None: the rows are prepared.

        Args:
            unfinished: Prompts that were taken and are not trained on yet, whose rows are still needed.
        """

    def metrics(self) -> dict[str, float]:
        """Return the metrics of streamed rows; none if the rows are prepared."""


class EpochPrompts:
    """Rows in epoch order, after the prompts that an earlier run left unfinished.

    Names are PASS/ROW, with the pass over the row's source: the epoch, unless the data is a mixture.
    """

    def __init__(
        self,
        rows: PreparedRows,
        order: RowOrder,
        cursor: EpochCursor,
        unfinished: Sequence[str],
        max_epochs: int | None = None,
        curriculum: Curriculum | None = None,
    ) -> None:
        """Set up the source.

        Args:
            curriculum: Skips prompts of the epochs after the first; None: no prompt is skipped.
        """
        self._rows = rows
        self._order = order
        self._max_epochs = max_epochs
        self.curriculum = curriculum
        self.cursor = cursor
        self.unfinished = list(unfinished)

    async def next_prompt(self) -> str | None:
        if self.unfinished:
            return self.unfinished.pop(0)
        while True:
            epoch = self.cursor.epoch
            draws, self.cursor = take_rows(self.cursor, 1, self._order, self._max_epochs)
            if not draws:
                return None
            if self.curriculum is None or self.curriculum.should_draw(epoch, draws[0].row):
                return f"{draws[0].source_pass}/{draws[0].row}"

    def row(self, group_id: str) -> PreparedRow:
        return self._rows[row_index(group_id)]

    @property
    def source_names(self) -> Sequence[str]:
        """Names of the sources of a mixture; none if the data is no mixture."""
        return self._order.names

    def source_of(self, group_id: str) -> str | None:
        """Return the name of the source of a prompt name; None if the data is no mixture."""
        return self._order.source_of(row_index(group_id))

    def commit(self, unfinished: Sequence[str]) -> StreamState | None:
        return None

    def metrics(self) -> dict[str, float]:
        return {}


class ListPrompts:
    """All rows once, in order. Names are PREFIX/ROW."""

    def __init__(self, rows: Sequence[PreparedRow], prefix: str) -> None:
        self._rows = rows
        self._prefix = prefix
        self._position = 0

    async def next_prompt(self) -> str | None:
        if self._position >= len(self._rows):
            return None
        self._position += 1
        return f"{self._prefix}/{self._position - 1}"

    def row(self, group_id: str) -> PreparedRow:
        return self._rows[row_index(group_id)]
