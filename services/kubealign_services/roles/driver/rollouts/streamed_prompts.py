"""Prompts, or rows, that are read while the job trains."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

from kubealign_services.data.epoch_shuffle import EpochCursor
from kubealign_services.data.errors import DataError
from kubealign_services.data.prepared import DatasetReport, PreparedRow, row_index
from kubealign_services.data.sources.file_rows import RowPosition
from kubealign_services.data.streaming.row_stream import StreamState
from kubealign_services.data.streaming.tokenized_stream import StreamedRow, TokenizedStream
from kubealign_services.roles.driver.errors import UnrecoverableError
from kubealign_services.roles.driver.rollouts.curriculum import Curriculum

Result = TypeVar("Result")

#: Rows drawn and tokenised at a time, in a thread. The next block is read when fewer are left.
_BLOCK_DRAWS = 32
#: Seconds to open the stream, and for a block. The first block of a job that continues reads the rows of the
#: shuffle buffer again.
READ_TIMEOUT = 600.0


class StreamedPrompts:
    """Rows in the order of the stream, after the prompts that an earlier run left unfinished.

    Names are PASS/ROW, where ROW is the number of the row in its source. `rows`: number -> each row that was
    drawn and is not trained on yet.
    """

    curriculum: Curriculum | None = None
    source_names: Sequence[str] = ()

    def __init__(
        self,
        stream: TokenizedStream,
        cursor: EpochCursor,
        state: StreamState,
        unfinished: Sequence[str],
        check: Callable[[DatasetReport], None],
        timeout: float = READ_TIMEOUT,
    ) -> None:
        """Set up the source.

        Args:
            cursor, state: Those from which the stream was opened.
            check: Called with the statistics of the rows read so far; raises UnrecoverableError.
            timeout: Seconds for a block.
        """
        self._timeout = timeout
        self.rows: dict[int, PreparedRow] = {}
        self.cursor = cursor
        self.unfinished = list(unfinished)
        self._stream = stream
        self._state = state
        self._check = check
        self._positions: dict[int, RowPosition] = {}
        self._has_restored = not unfinished
        self._ready: deque[StreamedRow] = deque()
        self._reading: asyncio.Task[list[StreamedRow]] | None = None

    async def next_prompt(self) -> str:
        """Return the next prompt's name. The data never runs out.

        Raises UnrecoverableError for a row that cannot be used, or a file that cannot be read in time.
        """
        if not self._has_restored:
            await self._restore_unfinished()
        if self.unfinished:
            return self.unfinished.pop(0)
        while not self._ready:
            self._ready.extend(await self._read_block())
        row = self._ready.popleft()
        if len(self._ready) < _BLOCK_DRAWS // 2:
            self._begin_reading()
        self.cursor, self._state = row.cursor, row.state
        self.rows[row.position.row] = row.content
        self._positions[row.position.row] = row.position
        return f"{row.source_pass}/{row.position.row}"

    def row(self, group_id: str) -> PreparedRow:
        return self.rows[row_index(group_id)]

    def source_of(self, group_id: str) -> str | None:
        """Return None: streamed rows are no mixture."""
        return None

    def commit(self, unfinished: Sequence[str]) -> StreamState:
        """Return the state of the stream, and drop all rows that are not needed any more.

        Args:
            unfinished: Prompts that were taken and are not trained on yet.
        """
        needed = {row_index(name) for name in unfinished}
        for number in self.rows.keys() - needed:
            del self.rows[number], self._positions[number]
        oldest: dict[int, RowPosition] = {}
        for name in unfinished:
            source_pass, position = int(name.partition("/")[0]), self._positions[row_index(name)]
            oldest[source_pass] = min(position, oldest.get(source_pass, position))
        return self._state.model_copy(update={"unfinished": oldest})

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the stream: rows dropped and rows read since the start of the job."""
        return {
            "data/dropped_prompts": self._state.dropped,
            "data/rows_read": self._stream.count_read(self.cursor, self._state),
        }

    async def close(self) -> None:
        """Stop reading. A block that is being read in the thread is dropped."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    async def _restore_unfinished(self) -> None:
        """Read the rows of the unfinished prompts again."""
        rows: dict[int, list[int]] = {}
        for name in self.unfinished:
            rows.setdefault(int(name.partition("/")[0]), []).append(row_index(name))
        reading = asyncio.to_thread(self._stream.read_again, rows, self._state.unfinished)
        restored = await wait_for_read(asyncio.create_task(reading), self._stream.name, self._timeout)
        for number, (position, content) in restored.items():
            self.rows[number], self._positions[number] = content, position
        self._has_restored = True

    def _begin_reading(self) -> asyncio.Task[list[StreamedRow]]:
        """Read the next block in a thread, unless one is being read."""
        if self._reading is None:
            self._reading = asyncio.create_task(asyncio.to_thread(self._stream.read_block, _BLOCK_DRAWS))
        return self._reading

    async def _read_block(self) -> list[StreamedRow]:
        """Return the next block, which may be empty where all its rows are dropped."""
        block = await wait_for_read(self._begin_reading(), self._stream.name, self._timeout)
        self._reading = None
        self._check(self._stream.report())
        return block


async def wait_for_read(reading: "asyncio.Task[Result]", name: str, timeout: float = READ_TIMEOUT) -> Result:
    """Wait for a thread that reads streamed rows, and return its result.

    Args:
        name: Name of the source.
        timeout: Seconds.

    Raises UnrecoverableError for a DataError, or after the timeout; the thread then runs on.
    """
    try:
        return await asyncio.wait_for(asyncio.shield(reading), timeout)
    except TimeoutError as error:
        raise UnrecoverableError(
            f"{name}: the next rows could not be read in {timeout:g} s: check the volume that holds them, or "
            "lower streaming.shuffleBuffer"
        ) from error
    except DataError as error:
        raise UnrecoverableError(str(error)) from error
