"""Streamed rows of a job: the same rows, counts and errors as prepared rows, from files as they were."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from kubealign.spec.job import AlignmentJob
from kubealign_services.data.epoch_shuffle import EpochCursor
from kubealign_services.data.errors import DataError
from kubealign_services.data.preparation import prepare
from kubealign_services.data.prepared import PreparedJob
from kubealign_services.data.streaming.row_stream import StreamState
from kubealign_services.data.streaming.tokenized_stream import StreamedRow, open_stream
from kubealign_services.data.tokenization.tokenizers import train_character_tokenizer
from support.preparing import from_config, job

ROWS = 1500
LETTERS = "abcdefgh"


def row(number: int) -> dict[str, Any]:
    """Every seventh prompt is longer than the context of 64 tokens."""
    letter = LETTERS[number % 8]
    return {"prompt": letter * (90 if number % 7 == 3 else number % 5 + 1), "response": letter, "n": number}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tokenizer")
    train_character_tokenizer([LETTERS]).save_pretrained(folder)
    return folder


def write_shards(folder: Path, rows: list[dict[str, Any]]) -> list[str]:
    """Write the rows to three files of JSON Lines."""
    paths = [folder / f"shard-{index}.jsonl" for index in range(3)]
    for index, path in enumerate(paths):
        part = rows[index * len(rows) // 3 : (index + 1) * len(rows) // 3]
        path.write_text("\n".join(json.dumps(each) for each in part) + "\n")
    return [str(path) for path in paths]


def sft(tokenizer: Path, source: dict[str, Any], **data: Any) -> AlignmentJob:
    return job(
        {
            "algorithm": {"sft": {}},
            "policy": {"model": from_config({"path": str(tokenizer)})},
            "data": {"demonstrations": {"source": source, **data}},
        }
    )


def read_pass(spec: AlignmentJob, prepared: PreparedJob) -> Iterator[StreamedRow]:
    stream = open_stream(spec, prepared, EpochCursor(), StreamState())
    while True:
        for each in stream.read_block(32):
            if each.source_pass > 0:
                return
            yield each


def test_a_pass_has_the_rows_of_the_preparation(tmp_path: Path, tokenizer: Path) -> None:
    source = {"paths": write_shards(tmp_path, [row(number) for number in range(ROWS)])}
    fields: dict[str, Any] = {"values": {"k": 1}, "template": "{prompt}{k}", "limit": ROWS - 100}
    prepared = prepare(sft(tokenizer, source, **fields), tmp_path / "whole", {})
    spec = sft(tokenizer, source, **fields, streaming={"shuffleBuffer": 100})
    streamed = prepare(spec, tmp_path / "streamed", {})
    report = streamed.report.train
    assert report.streaming and report.rows_read == 512 and len(streamed.train) == report.rows_kept < 512
    rows = list(read_pass(spec, streamed))
    assert [each.content.row for each in rows] != sorted(each.content.row for each in rows)
    assert sorted((each.content for each in rows), key=lambda each: each.row) == list(prepared.train)
    assert rows[-1].state.dropped == prepared.report.train.dropped > 0
    assert rows[0].state.rows is None
    in_order = sft(tokenizer, source, **fields, shuffle=False, streaming={})
    ordered_rows = [each.content for each in read_pass(in_order, prepare(in_order, tmp_path / "ordered", {}))]
    assert ordered_rows == list(prepared.train)


def test_unfinished_rows_are_read_again(tmp_path: Path, tokenizer: Path) -> None:
    path = tmp_path / "rows.parquet"
    table = pyarrow.Table.from_pylist([row(number) for number in range(200)])
    pyarrow.parquet.write_table(table, path, row_group_size=20)
    spec = sft(tokenizer, {"path": str(path)}, streaming={"shuffleBuffer": 10})
    prepared = prepare(spec, tmp_path / "run", {})
    rows = list(read_pass(spec, prepared))
    unfinished = rows[100:110]
    start = min(each.position for each in unfinished)
    stream = open_stream(spec, prepared, rows[109].cursor, rows[109].state)
    again = stream.read_again({0: [each.position.row for each in unfinished]}, {0: start})
    assert again == {each.position.row: (each.position, each.content) for each in unfinished}
    assert stream.read_block(32)[:10] == rows[110:][:10]
    with pytest.raises(DataError, match="row 4 was drawn before the job stopped"):
        stream.read_again({0: [3]}, {})


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ('{"prompt": 5, "response": "a"}', "column 'prompt' holds 5 (int), not text"),
        ('{"prompt": "a", "response": ', "line 321, column 29: not JSON"),
        ('{"prompt": "a"}', "has no column 'response'"),
    ],
)
def test_a_bad_row_is_the_same_error_after_the_rows_before_it(
    tmp_path: Path, tokenizer: Path, bad: str, message: str
) -> None:
    paths = write_shards(tmp_path, [row(number) for number in range(ROWS)])
    lines = Path(paths[1]).read_text().splitlines()
    lines[320] = bad
    Path(paths[1]).write_text("\n".join(lines))
    with pytest.raises(DataError) as whole:
        prepare(sft(tokenizer, {"paths": paths}), tmp_path / "whole", {})
    spec = sft(tokenizer, {"paths": paths}, shuffle=False, streaming={})
    prepared = prepare(spec, tmp_path / "streamed", {})
    rows: list[StreamedRow] = []
    with pytest.raises(DataError) as caught:
        rows.extend(read_pass(spec, prepared))
    assert (
        str(caught.value) == str(whole.value)
        and message in str(caught.value)
        and paths[1] in str(caught.value)
    )
    stream, numbers = open_stream(spec, prepared, EpochCursor(), StreamState()), []
    with pytest.raises(DataError):
        while True:
            numbers += [each.content.row for each in stream.read_block(32)]
    # A row is read when the one before it is drawn, and a row of the right JSON is checked at its turn.
    first_bad = 500 + 320
    expected = [number for number in range(first_bad - ("JSON" in message)) if number % 7 != 3]
    assert numbers == expected


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"format": {"text": {"prompt": "question"}}}, "has no column 'question'"),
        ({"template": "{prompt} {grade}"}, "grade"),
        ({"maxTokens": 1, "overlong": "Fail"}, "row 2 .*is too long"),
    ],
)
def test_configuration_errors_are_found_at_the_start(
    tmp_path: Path, tokenizer: Path, data: dict[str, Any], message: str
) -> None:
    paths = write_shards(tmp_path, [row(number) for number in range(30)])
    errors = []
    for name, streaming in (("whole", None), ("streamed", {})):
        with pytest.raises(DataError, match=message) as caught:
            prepare(sft(tokenizer, {"paths": paths}, **data, streaming=streaming), tmp_path / name, {})
        errors.append(str(caught.value))
    assert errors[0] == errors[1]


def test_rows_that_are_all_dropped_are_an_error(tmp_path: Path, tokenizer: Path) -> None:
    paths = write_shards(tmp_path, [row(3)] * ROWS)
    with pytest.raises(DataError, match=f"all {ROWS} rows were dropped"):
        prepare(sft(tokenizer, {"paths": paths}, streaming={}), tmp_path / "run", {})


def test_files_that_changed_are_refused(tmp_path: Path, tokenizer: Path) -> None:
    paths = write_shards(tmp_path, [row(number) for number in range(30)])
    spec = sft(tokenizer, {"path": str(tmp_path / "*.jsonl")}, streaming={})
    prepared = prepare(spec, tmp_path / "run", {})
    # A file that is added later is not read.
    (tmp_path / "shard-9.jsonl").write_text(json.dumps(row(5)) + "\n")
    assert len({each.content.row for each in read_pass(spec, prepared)}) == sum(n % 7 != 3 for n in range(30))
    with Path(paths[2]).open("a") as file:
        file.write(json.dumps(row(1)) + "\n")
    with pytest.raises(
        DataError, match=r"source.path: .*shard-2.jsonl has changed since the job was prepared"
    ):
        open_stream(spec, prepared, EpochCursor(), StreamState())


def test_what_cannot_be_streamed_is_refused(tmp_path: Path, tokenizer: Path) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([row(number) for number in range(9)]))
    with pytest.raises(DataError, match=r"source.path: .*rows.json holds one JSON list"):
        prepare(sft(tokenizer, {"path": str(path)}, streaming={}), tmp_path / "list", {})
    paths = write_shards(tmp_path, [row(number) for number in range(30)])
    spec = sft(tokenizer, {"paths": paths}, streaming={}).model_dump(by_alias=True, mode="json")
    spec["spec"] |= {"algorithm": {"distillation": {}}, "teacher": {"model": from_config()}}
    with pytest.raises(
        DataError, match=r"demonstrations.streaming: a tokenizer would be trained on all rows"
    ):
        prepare(AlignmentJob.model_validate(spec), tmp_path / "trained", {})
