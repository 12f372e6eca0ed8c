"""Stream of rows: pass after pass over the files of a source, through the shuffle buffer."""

from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict

from kubealign_services.data.epoch_shuffle import EpochCursor
from kubealign_services.data.errors import DataError
from kubealign_services.data.sources.file_rows import START, RowPosition, SourceRow
from kubealign_services.data.sources.row_dataset import RowDataset
from kubealign_services.data.streaming.stream_order import StreamOrder, take_slot


class StreamState(BaseModel):
    """State of a stream beside its cursor, from which a job continues.

    rows: rows of the source; None: its end was not read yet. dropped: rows dropped for their length since the
    start of the job. oldest: position up to which no row is needed any more to fill the buffer. unfinished:
    pass -> position up to which none of its unfinished prompts occurs.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rows: int | None = None
    dropped: int = 0
    oldest: RowPosition = START
    unfinished: dict[int, RowPosition] = {}


@dataclass(frozen=True)
class StreamDraw:
    """One drawn row, and the cursor after it."""

    source_pass: int
    position: RowPosition
    row: SourceRow
    cursor: EpochCursor


class RowStream:
    """Draws rows without end.

    Memory: the rows in the buffer. A stream that continues reads the rows from `oldest` to the cursor again.
    """

    def __init__(
        self, source: RowDataset, order: StreamOrder, cursor: EpochCursor, state: StreamState
    ) -> None:
        self.source = source
        self._order = order
        self._cursor = cursor
        self._rows = state.rows
        self._start = state.oldest
        self._slots: list[tuple[RowPosition, SourceRow]] = []
        self._reader: Iterator[tuple[RowPosition, SourceRow]] = iter(())
        self._numbers: Iterator[float] = iter(())

    @property
    def rows(self) -> int | None:
        """Rows of the source; None: its end was not read yet."""
        return self._rows

    def find_oldest(self) -> RowPosition:
        """Return the position of the first row in the buffer, which is filled if it is empty.

        Raises DataError as `draw`.
        """
        if not self._slots:
            self._open()
        return min(position for position, _ in self._slots)

    def count_read(self, cursor: EpochCursor, rows: int | None) -> int:
        """Return the number of rows read for the draws up to a cursor since the start of the job.

        Args:
            rows: Rows of the source; None: its end was not read yet.
        """
        read = cursor.position + self._order.buffer_rows
        return read if rows is None else cursor.epoch * rows + min(read, rows)

    def draw(self) -> StreamDraw:
        """Return the next row.

        Raises DataError for a file that cannot be read, or that has changed since the job began.
        """
        if not self._slots:
            self._open()
        source_pass, draws = self._cursor.epoch, self._cursor.position
        number, following = next(self._numbers), next(self._reader, None)
        if following is None:
            self._end(draws + len(self._slots))
        position, row = take_slot(self._slots, number, following)
        self._cursor = EpochCursor(source_pass, draws + 1)
        if not self._slots:
            self._cursor, self._start = EpochCursor(source_pass + 1, 0), START
        return StreamDraw(source_pass, position, row, self._cursor)

    def _open(self) -> None:
        """Fill the buffer with the rows that it holds before the draw at the cursor."""
        source_pass, draws = self._cursor.epoch, self._cursor.position
        numbers = self._order.slots(source_pass, draws, self._rows)
        needed = set(numbers)
        rows_read = draws + self._order.buffer_rows
        if self._rows is not None:
            rows_read = min(rows_read, self._rows)
        self._numbers = self._order.numbers(source_pass, draws)
        self._reader = self.source.rows_from(self._start if draws else START)
        buffered: dict[int, tuple[RowPosition, SourceRow]] = {}
        for position, row in self._reader:
            if position.row in needed:
                buffered[position.row] = position, row
            if position.row + 1 == rows_read:
                break
        if len(buffered) < len(numbers) and (draws or self._rows is not None):
            raise self._changed()
        # At the very start a source with fewer rows than the buffer leaves slots empty.
        self._slots = [buffered[number] for number in numbers if number in buffered]

    def _end(self, rows: int) -> None:
        """Note the number of rows at the end of the source. Raises DataError if it was another before."""
        if self._rows not in (None, rows):
            raise self._changed()
        self._rows = rows

    def _changed(self) -> DataError:
        return DataError(
            f"{self.source.name} has not the rows any more that it had when the job began: put them back, or "
            "start the job afresh"
        )
