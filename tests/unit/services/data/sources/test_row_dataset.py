"""Row sources: files as they are, and errors of unusable files."""

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubealign.spec.sections.data import DataSource
from kubealign_services.data.errors import DataError
from kubealign_services.data.sources.row_dataset import RowDataset, open_source, require_columns
from kubealign_services.data.tokenization.row_writer import columns_to_json

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def opened(path: Path, limit: int | None = None) -> RowDataset:
    return open_source(DataSource(path=str(path)), "data.source", path.parent / "cache", limit)


@pytest.mark.slow
@given(rows=st.lists(st.dictionaries(st.text(max_size=4), json_values, min_size=1, max_size=4), min_size=1))
def test_json_lines_are_read_exactly(
    tmp_path_factory: pytest.TempPathFactory, rows: list[dict[str, Any]]
) -> None:
    path = tmp_path_factory.mktemp("rows") / "rows.jsonl"
    path.write_text("\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
    assert list(opened(path)) == rows


def test_values_are_read_exactly(tmp_path: Path) -> None:
    """Dates stay text, large integers keep all digits, and a column may hold several types."""
    path = tmp_path / "rows.jsonl"
    path.write_text(
        '{"a": "2020-01-01", "b": 123456789012345678901234567890}\n{"a": 5, "b": {"c": [1, "x"]}}\n'
    )
    assert list(opened(path)) == [
        {"a": "2020-01-01", "b": 123456789012345678901234567890},
        {"a": 5, "b": {"c": [1, "x"]}},
    ]


def test_rows_can_be_read_again_and_limited(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"n": n}) + "\n" for n in range(9)))
    source = opened(path, limit=4)
    assert [row["n"] for row in source] == [row["n"] for row in source] == [0, 1, 2, 3]
    assert source.columns == ("n",)


@pytest.mark.parametrize(
    "text", ['[{"a": 1}, {"a": 2}]', '\ufeff{"a": 1}\n{"a": 2}', '\n [\n{"a": 1},\n{"a": 2}\n]\n']
)
def test_a_json_file_is_a_list_or_lines(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rows.json"
    path.write_text(text, encoding="utf-8")
    assert list(opened(path)) == [{"a": 1}, {"a": 2}]


def test_parquet(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    rows = [{"a": "x", "m": [{"role": "user"}]}, {"a": "y", "m": []}]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    assert list(opened(path)) == rows


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("rows.jsonl", b'{"a": 1}\n{"a": 2\n', r"rows.jsonl, line 2, column \d+: not JSON"),
        ("rows.jsonl", b'{"a": 1}\n[1]\n', "line 2: a row is an object, not a list"),
        ("rows.jsonl", b'{"a": 1}\n7\n', "line 2: a row is an object, not int"),
        ("rows.json", b'[{"a": 1},\n 3]', "row 2: a row is an object, not int"),
        ("rows.json", b'[{"a": 1}, [2]]', "row 2: a row is an object, not a list"),
        ("rows.json", b'[{"a": 1},\n {"a" 3}]', "line 2, column 7: not JSON"),
        ("rows.jsonl", b'{"a": "\xff"}\n', "cannot be read.*utf-8"),
        ("rows.jsonl", b"\n\n", "has no rows"),
        ("rows.json", b"[]", "has no rows"),
        ("rows.parquet", b"nothing of the kind", "cannot be read"),
        ("rows.csv", b"a,b\n1,2\n", r"ends in .csv; rows are read from .jsonl"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        list(opened(path))
    assert str(path) in str(caught.value)


def test_missing_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.source\.path: there is no file"):
        opened(tmp_path / "absent.jsonl")
    with pytest.raises(DataError, match="is a folder"):
        opened(tmp_path)
    volume = DataSource.model_validate({"volume": {"claimName": "corpus", "path": "train.parquet"}})
    with pytest.raises(
        DataError, match=r"data\.source\.volume\.claimName: the volume corpus is not mounted here"
    ):
        open_source(volume, "data.source", tmp_path)


def test_a_missing_column_names_those_there_are(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"question": "x", "answer": "y"}\n')
    with pytest.raises(DataError) as caught:
        require_columns(opened(path), {"data.format.text.prompt": "questions"})
    assert str(caught.value) == (
        f"data.format.text.prompt: {path} has no column 'questions'; it has 'question', 'answer'; "
        "did you mean 'question'?"
    )


def test_columns_that_json_cannot_hold_are_left_out() -> None:
    import datetime
    import decimal

    text, left_out = columns_to_json(
        {
            "n": float("nan"),
            "d": datetime.date(2020, 1, 2),
            "b": b"x",
            "l": [1, {"k": float("inf")}],
            "x": decimal.Decimal(1),
        }
    )
    assert json.loads(text) == {"n": None, "d": "2020-01-02", "l": [1, {"k": None}]}
    assert left_out == ["b", "x"]


@given(st.dictionaries(st.text(), json_values))
def test_columns_round_trip(columns: dict[str, Any]) -> None:
    text, left_out = columns_to_json(columns)
    assert (json.loads(text), left_out) == (columns, [])
