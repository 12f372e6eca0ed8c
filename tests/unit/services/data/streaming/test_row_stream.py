"""Stream of rows: each row once a pass, the same order from every position, and a bounded buffer."""

import json
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubealign_services.data.epoch_shuffle import EpochCursor
from kubealign_services.data.errors import DataError
from kubealign_services.data.sources.file_rows import START, RowPosition
from kubealign_services.data.sources.row_dataset import RowDataset, open_files
from kubealign_services.data.streaming.row_stream import RowStream, StreamDraw, StreamState
from kubealign_services.data.streaming.stream_order import StreamOrder


class CountedRows:
    """Rows 0 to rows - 1. latest: the latest row read. read: number of rows read."""

    def __init__(self, rows: int) -> None:
        self.rows, self.latest, self.read = rows, -1, 0

    def __call__(self, start: RowPosition):  # type: ignore[no-untyped-def]
        for number in range(start.row, self.rows):
            self.latest, self.read = number, self.read + 1
            yield RowPosition(number, 0, number), {"n": number}

    def dataset(self) -> RowDataset:
        return RowDataset("counted", ("n",), self, None)


def stream(
    rows: CountedRows,
    order: StreamOrder,
    cursor: EpochCursor | None = None,
    state: StreamState | None = None,
) -> RowStream:
    return RowStream(rows.dataset(), order, cursor or EpochCursor(), state or StreamState())


def names(draws: list[StreamDraw]) -> list[tuple[int, int]]:
    return [(draw.source_pass, draw.row["n"]) for draw in draws]


def slow_pass(order: StreamOrder, source_pass: int, rows: int) -> list[int]:
    """Shuffle buffer as datasets.IterableDataset has it: fill, draw and replace, then empty."""
    buffer, result = list(range(min(rows, order.buffer_rows))), []
    following = iter(range(len(buffer), rows))
    for number, _ in zip(order.numbers(source_pass, 0), range(rows), strict=False):
        index = int(number * len(buffer))
        result.append(buffer[index])
        replacement = next(following, None)
        if replacement is not None:
            buffer[index] = replacement
        else:
            buffer[index] = buffer[-1]
            buffer.pop()
    return result


@given(rows=st.integers(1, 40), buffer=st.integers(1, 50), seed=st.integers(0, 9))
def test_each_pass_draws_each_row_once_from_a_bounded_buffer(rows: int, buffer: int, seed: int) -> None:
    source, order = CountedRows(rows), StreamOrder(seed, buffer)
    drawing = stream(source, order)
    for source_pass in range(3):
        drawn = []
        for count in range(1, rows + 1):
            draw = drawing.draw()
            assert draw.source_pass == source_pass
            drawn.append(draw.row["n"])
            # One row after those in the buffer is read, to tell the last draw of a pass.
            assert source.latest < count + buffer
            assert draw.cursor == (
                EpochCursor(source_pass, count) if count < rows else EpochCursor(source_pass + 1)
            )
        assert sorted(drawn) == list(range(rows))
        assert drawn == slow_pass(order, source_pass, rows)


@given(
    rows=st.integers(1, 30), buffer=st.integers(1, 40), seed=st.integers(0, 9), position=st.integers(0, 75)
)
def test_a_stream_continues_from_every_position(rows: int, buffer: int, seed: int, position: int) -> None:
    order, count = StreamOrder(seed, buffer), 90
    undisturbed = stream(CountedRows(rows), order)
    expected = [undisturbed.draw() for _ in range(count)]
    first = stream(CountedRows(rows), order)
    before = [first.draw() for _ in range(position)]
    cursor = before[-1].cursor if before else EpochCursor()
    state = StreamState(rows=first.rows, oldest=first.find_oldest())
    stored = StreamState.model_validate_json(state.model_dump_json())
    restored = stream(CountedRows(rows), order, cursor, stored)
    after = [restored.draw() for _ in range(count - position)]
    assert names(before) + names(after) == names(expected)


@settings(max_examples=20)
@given(rows=st.integers(0, 3000), draws=st.integers(0, 3000), buffer=st.integers(1, 200))
def test_the_slots_are_those_of_the_draws_one_by_one(rows: int, draws: int, buffer: int) -> None:
    order, rng = StreamOrder(3, buffer), random.Random(1)
    draws = min(draws, rows)
    slots, following = list(range(min(rows, buffer))), min(rows, buffer)
    for number, _ in zip(order.numbers(0, 0), range(draws), strict=False):
        index = int(number * len(slots))
        if following < rows:
            slots[index], following = following, following + 1
        else:
            slots[index] = slots[-1]
            slots.pop()
    assert order.slots(0, draws, rows) == slots
    if draws + buffer <= rows:
        assert order.slots(0, draws, None) == slots
    first = rng.randrange(10_000)
    ahead = order.numbers(0, 0)
    assert [next(ahead) for _ in range(first + 3)][first:] == [
        number for number, _ in zip(order.numbers(0, first), range(3), strict=False)
    ]


def test_few_rows_are_read_again() -> None:
    order, source = StreamOrder(1, 100), CountedRows(100_000)
    first = stream(source, order)
    cursor = [first.draw() for _ in range(20_000)][-1].cursor
    again = CountedRows(100_000)
    stream(again, order, cursor, StreamState(oldest=first.find_oldest())).draw()
    assert again.read < 20 * order.buffer_rows


def test_without_shuffling_the_order_is_that_of_the_files() -> None:
    drawing = stream(CountedRows(5), StreamOrder(1, 1))
    assert [drawing.draw().row["n"] for _ in range(10)] == [0, 1, 2, 3, 4] * 2


@pytest.mark.parametrize("draws", [0, 5, 8])
@pytest.mark.parametrize("rows", [1, 7, 12])
def test_rows_that_changed_are_refused(rows: int, draws: int) -> None:
    drawing = stream(CountedRows(rows), StreamOrder(1, 4), EpochCursor(1, draws), StreamState(rows=10))
    with pytest.raises(DataError, match="has not the rows any more"):
        for _ in range(12):
            drawing.draw()


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_files_are_read_from_each_position(tmp_path: Path, newline: bytes, mark: bytes) -> None:
    paths = [tmp_path / name for name in ("a.jsonl", "b.jsonl", "c.jsonl")]
    lines = [
        json.dumps({"n": number, "t": "é" * (number % 3)}, ensure_ascii=False).encode() for number in range(9)
    ]
    paths[0].write_bytes(mark + newline.join([*lines[:4], b"", b" "]))
    paths[1].write_bytes(newline * 2)
    paths[2].write_bytes(newline.join(lines[4:]) + newline)
    data = open_files(dict.fromkeys(paths, "data.source"), "data.source", 8)
    rows = list(data.rows_from(START))
    assert [row["n"] for _, row in rows] == list(range(8))
    assert [position.row for position, _ in rows] == list(range(8))
    for index, (position, _) in enumerate(rows):
        assert list(data.rows_from(position)) == rows[index:]


def test_a_json_list_is_read_from_each_position(tmp_path: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([{"n": number} for number in range(3)]))
    data = open_files({path: "data.source"}, "data.source")
    rows = list(data.rows_from(START))
    for index, (position, _) in enumerate(rows):
        assert list(data.rows_from(position)) == rows[index:]


def test_parquet_is_read_from_each_position(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for path, numbers in zip(paths, (range(7), range(7, 11)), strict=True):
        table = pyarrow.Table.from_pylist([{"n": number} for number in numbers])
        pyarrow.parquet.write_table(table, path, row_group_size=3)
    data = open_files(dict.fromkeys(paths, "data.source"), "data.source")
    rows = list(data.rows_from(START))
    assert [row["n"] for _, row in rows] == list(range(11))
    for index, (position, _) in enumerate(rows):
        assert list(data.rows_from(position)) == rows[index:]
