"""Files of a source: globs, lists of files, and their errors."""

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from kubealign.spec.sections.data import DataSource
from kubealign_services.data.errors import DataError
from kubealign_services.data.sources import volumes
from kubealign_services.data.sources.row_dataset import open_source


def write(folder: Path, **files: list[int]) -> None:
    """Write files by their path without suffix, with `__` for a slash: one row {"n": number} per number."""
    for name, numbers in files.items():
        path = folder / f"{name.replace('__', '/')}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps({"n": number}) + "\n" for number in numbers))


def read(source: dict[str, Any], limit: int | None = None) -> list[int]:
    dataset = open_source(DataSource.model_validate(source), "data.source", Path("cache"), limit)
    return [row["n"] for row in dataset]


def error_of(source: dict[str, Any]) -> str:
    with pytest.raises(DataError) as caught:
        read(source)
    return str(caught.value)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        # Sorted as text, whatever the order on disk: 10 before 2.
        ("shard-*.jsonl", [10, 2, 3]),
        ("shard-?.jsonl", [2, 3]),
        ("shard-[13]*.jsonl", [10, 3]),
        ("**/deep*.jsonl", [7, 8]),
        ("*/deep.jsonl", [7]),
        ("**/*.jsonl", [7, 8, 0, 10, 2, 3]),
    ],
)
def test_a_glob_reads_its_files_sorted_by_name(tmp_path: Path, pattern: str, expected: list[int]) -> None:
    write(tmp_path, **{"shard-2": [2], "shard-3": [3], "shard-10": [10], "other": [0]})
    write(tmp_path, a__deep=[7], b__c__deeper=[8])
    (tmp_path / ".shard-1.jsonl").write_text('{"n": -1}\n')
    (tmp_path / "shard-4.jsonl").mkdir()
    assert read({"path": str(tmp_path / pattern)}) == expected


def test_a_list_is_read_in_its_order_and_globs_in_it_by_name(tmp_path: Path) -> None:
    write(tmp_path, z=[1, 2], b=[3], a=[4], y=[5])
    names = ["z.jsonl", "[ab].jsonl", "y.jsonl"]
    source = {"paths": [str(tmp_path / name) for name in names]}
    assert read(source) == [1, 2, 4, 3, 5]
    assert read(source, limit=3) == [1, 2, 4]


def test_files_and_globs_of_a_volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(volumes, "VOLUMES", tmp_path)
    write(tmp_path / "corpus" / "train", b=[2], a=[1])
    assert read({"volume": {"claimName": "corpus", "path": "train/*.jsonl"}}) == [1, 2]
    assert read({"volume": {"claimName": "corpus", "paths": ["train/b.jsonl", "train/a.jsonl"]}}) == [2, 1]
    assert error_of({"volume": {"claimName": "corpus", "path": "test/*.jsonl"}}) == (
        f"data.source.volume.path: no file matches test/*.jsonl in {tmp_path / 'corpus'}"
    )


def test_json_and_json_lines_are_one_format(tmp_path: Path) -> None:
    write(tmp_path, a=[1])
    (tmp_path / "b.json").write_text('[{"n": 2}, {"n": 3}]')
    assert read({"path": str(tmp_path / "*")}) == [1, 2, 3]


def test_parquet_shards(tmp_path: Path) -> None:
    for number in (2, 0, 1):
        table = pyarrow.Table.from_pylist([{"n": number}, {"n": number + 10}])
        pyarrow.parquet.write_table(table, tmp_path / f"train-{number:05}-of-00003.parquet")
    assert read({"path": str(tmp_path / "train-*.parquet")}) == [0, 10, 1, 11, 2, 12]


def test_a_file_whose_name_has_brackets_is_read_as_before(tmp_path: Path) -> None:
    write(tmp_path / "[a]", **{"b[1]": [1], "b1": [2]})
    write(tmp_path / "a", b1=[3])
    assert read({"path": str(tmp_path / "[a]" / "b[1].jsonl")}) == [1]
    # The job's own folder is no pattern either.
    assert read({"path": str(tmp_path / "[a]" / "*.jsonl")}) == [2, 1]
    assert read({"path": str(tmp_path / "[a-c]" / "b[1].jsonl")}) == [3]


def test_one_empty_file_among_several_has_no_rows(tmp_path: Path) -> None:
    write(tmp_path, a=[], b=[1], c=[])
    assert read({"path": str(tmp_path / "*.jsonl")}) == [1]
    write(tmp_path, b=[])
    first, last = tmp_path / "a.jsonl", tmp_path / "c.jsonl"
    assert error_of({"path": str(tmp_path / "*.jsonl")}) == (
        f"data.source: {first} to {last} (3 files) has no rows"
    )


def test_a_glob_without_matches_names_pattern_and_folder(tmp_path: Path) -> None:
    write(tmp_path, shards__a=[1])
    assert error_of({"path": str(tmp_path / "shards" / "*.parquet")}) == (
        f"data.source.path: no file matches *.parquet in {tmp_path / 'shards'}"
    )
    # The folder is the deepest one that exists.
    assert error_of({"paths": [str(tmp_path / "shards/a.jsonl"), str(tmp_path / "shrads" / "*.jsonl")]}) == (
        f"data.source.paths[1]: no file matches shrads/*.jsonl in {tmp_path}"
    )


def test_a_missing_file_of_a_list_is_named(tmp_path: Path) -> None:
    write(tmp_path, a=[1])
    assert error_of({"paths": [str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")]}) == (
        f"data.source.paths[1]: there is no file {tmp_path / 'b.jsonl'}"
    )
    assert error_of({"paths": [str(tmp_path)]}).startswith(
        f"data.source.paths[0]: {tmp_path} is a folder: name a file in it, a glob such as {tmp_path}/*.jsonl"
    )


def test_mixed_formats_name_both_files(tmp_path: Path) -> None:
    write(tmp_path, a=[1])
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([{"n": 2}]), tmp_path / "b.parquet")
    assert error_of({"path": str(tmp_path / "*")}) == (
        f"data.source.path: {tmp_path / 'b.parquet'} and {tmp_path / 'a.jsonl'} have different formats: "
        "name files of one format"
    )
    (tmp_path / "README.md").write_text("rows")
    assert error_of({"path": str(tmp_path / "[!b]*")}).startswith(
        f"data.source.path: {tmp_path / 'README.md'} ends in .md; rows are read from .jsonl"
    )


def test_a_file_that_is_named_twice_is_refused(tmp_path: Path) -> None:
    write(tmp_path, a=[1], b=[2])
    assert error_of({"paths": [str(tmp_path / "b.jsonl"), str(tmp_path / "*.jsonl")]}) == (
        f"data.source.paths[1]: {tmp_path / 'b.jsonl'} is read by data.source.paths[0] too: remove one"
    )


def test_errors_in_a_later_file_name_it(tmp_path: Path) -> None:
    write(tmp_path, a=[1])
    (tmp_path / "b.jsonl").write_text('{"n": 2}\n{"n": 3\n')
    assert error_of({"path": str(tmp_path / "*.jsonl")}).startswith(f"{tmp_path / 'b.jsonl'}, line 2, column")
