"""Streamed rows, mapped, filtered and tokenised as prepared rows are."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kubealign.spec.job import AlignmentJob
from kubealign_services.data.epoch_shuffle import EpochCursor
from kubealign_services.data.errors import DataError, RowError
from kubealign_services.data.models.text_rewards import TextReward, text_bounds
from kubealign_services.data.prepared import DatasetReport, PreparedJob, PreparedRow
from kubealign_services.data.sources.file_rows import START, RowPosition, SourceRow
from kubealign_services.data.sources.row_dataset import RowDataset, open_files
from kubealign_services.data.streaming.row_stream import RowStream, StreamDraw, StreamState
from kubealign_services.data.streaming.stream_order import StreamOrder
from kubealign_services.data.streaming.streamed_files import StreamedFiles
from kubealign_services.data.tokenization.length_filter import training_budget
from kubealign_services.data.tokenization.row_writer import RowEncoder
from kubealign_services.data.tokenization.tokenizers import load_tokenizer
from kubealign_services.tools.catalog import read_catalog, tool_schemas


@dataclass(frozen=True)
class StreamedRow:
    """One kept row, with the cursor and the state of the stream after it."""

    source_pass: int
    position: RowPosition
    content: PreparedRow
    cursor: EpochCursor
    state: StreamState


class TokenizedStream:
    """Kept rows in the order of their draws, block by block.

    Not thread-safe: one block is read at a time.
    """

    def __init__(self, rows: RowStream, encoder: RowEncoder, dropped: int) -> None:
        """Set up the stream.

        Args:
            dropped: Rows dropped for their length before the first draw.
        """
        self._rows = rows
        self._encoder = encoder
        self._dropped = dropped
        self._error: DataError | None = None

    @property
    def name(self) -> str:
        """Name of the source."""
        return self._rows.source.name

    def report(self) -> DatasetReport:
        """Return the statistics of the rows tokenised since the stream was opened."""
        return self._encoder.report(self.name, {})

    def count_read(self, cursor: EpochCursor, state: StreamState) -> int:
        """Return the number of rows read for the draws up to a cursor since the start of the job."""
        return self._rows.count_read(cursor, state.rows)

    def read_block(self, draws: int) -> list[StreamedRow]:
        """Return the kept rows of the next draws, at most `draws` and at most to the end of a pass.

        Raises DataError for a row that cannot be used, or a file that cannot be read, once all rows drawn
        before it were returned.
        """
        if self._error is not None:
            raise self._error
        oldest = START
        block: list[StreamDraw] = []
        rows: list[int | None] = []
        try:
            oldest = self._rows.find_oldest()
            while len(block) < draws and not (block and block[-1].cursor.position == 0):
                block.append(self._rows.draw())
                rows.append(self._rows.rows)
        except DataError as error:
            self._error = error
        contents = self._encode_block([(draw.position, draw.row) for draw in block])
        result = []
        for draw, count in zip(block, rows, strict=True):
            if draw.position.row not in contents:
                continue
            content = contents[draw.position.row]
            if content is None:
                self._dropped += 1
                continue
            state = StreamState(rows=count, dropped=self._dropped, oldest=oldest)
            result.append(StreamedRow(draw.source_pass, draw.position, content, draw.cursor, state))
        if not result and self._error is not None:
            raise self._error
        return result

    def read_again(
        self, rows: Mapping[int, Sequence[int]], starts: Mapping[int, RowPosition]
    ) -> dict[int, tuple[RowPosition, PreparedRow]]:
        """Return rows that were drawn before, by their number.

        Args:
            rows: Pass -> numbers of rows that were drawn in it.
            starts: Pass -> position up to which none of its rows occurs.

        Raises DataError where a row is missing: the data has changed.
        """
        result: dict[int, tuple[RowPosition, PreparedRow]] = {}
        for source_pass, numbers in rows.items():
            needed = set(numbers) - result.keys()
            reader = self._rows.source.rows_from(starts.get(source_pass, START))
            drawn: list[tuple[RowPosition, SourceRow]] = []
            while len(drawn) < len(needed) and (item := next(reader, None)) is not None:
                if item[0].row in needed:
                    drawn.append(item)
            contents = self._encode(drawn)
            for position, _ in drawn:
                content = contents[position.row]
                if content is not None:
                    result[position.row] = position, content
            if missing := needed - result.keys():
                raise DataError(
                    f"{self.name}: row {min(missing) + 1} was drawn before the job stopped and cannot be "
                    "used any more: put the data back, or start the job afresh"
                )
        return result

    def _encode_block(self, rows: Sequence[tuple[RowPosition, SourceRow]]) -> dict[int, PreparedRow | None]:
        """Encode rows up to the first one that cannot be used, whose error the next block raises."""
        try:
            return self._encode(rows)
        except DataError:
            contents: dict[int, PreparedRow | None] = {}
        for each in rows:
            try:
                contents |= self._encode([each])
            except DataError as error:
                self._error = error
                break
        return contents

    def _encode(self, rows: Sequence[tuple[RowPosition, SourceRow]]) -> dict[int, PreparedRow | None]:
        """Return number of the row -> the row; None: it is dropped."""
        if not rows:
            return {}
        positions = {position.row: position for position, _ in rows}
        try:
            records = self._encoder.encode([(position.row, row) for position, row in rows])
        except RowError as error:
            raise self._rows.source.locate(error, positions[error.row]) from error
        contents: dict[int, PreparedRow | None] = dict.fromkeys(positions)
        for record in records:
            contents[record["row"]] = PreparedRow(**record | {"columns": json.loads(record["columns"])})
        return contents


def open_stream(
    job: AlignmentJob, prepared: PreparedJob, cursor: EpochCursor, state: StreamState
) -> TokenizedStream:
    """Open the streamed rows of a job.

    Raises DataError where a file has changed since the job was prepared.
    """
    return TokenizedStream(
        RowStream(_open_source(job, prepared), _stream_order(job), cursor, state),
        _build_encoder(job, prepared),
        state.dropped,
    )


def _open_source(job: AlignmentJob, prepared: PreparedJob) -> RowDataset:
    data = job.spec.data
    files = StreamedFiles.read(prepared.folder)
    path = f"spec.data.{data.member}.source"
    return open_files(files, path, data.value.limit).with_columns(data.value.values)


def _stream_order(job: AlignmentJob) -> StreamOrder:
    data = job.spec.data.value
    assert data.streaming is not None
    return StreamOrder(job.spec.seed, data.streaming.shuffle_buffer if data.shuffle else 1)


def _build_encoder(job: AlignmentJob, prepared: PreparedJob) -> RowEncoder:
    data, report = job.spec.data, prepared.report
    # A second tokenizer, because a thread reads the stream while the job's own tokenizer decodes samples.
    tokenizer = load_tokenizer(prepared.model_folder("policy"), "spec.policy.model")
    rewards = {role: TextReward.load(prepared.model_folder(role), role) for role in report.text_rewards}
    bounds = text_bounds(job, data, rewards, tokenizer)
    tools = tool_schemas(read_catalog(prepared.folder))
    return RowEncoder(data, tokenizer, training_budget(job.spec, report.context), None, bounds, None, tools)
