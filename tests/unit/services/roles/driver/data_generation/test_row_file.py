"""Durability of the row file when either process is killed at any time."""

import json
from pathlib import Path
from typing import Any

import pytest

from kubealign_services.roles.driver.data_generation.row_file import RowFile
from kubealign_services.roles.driver.errors import UnrecoverableError
from kubealign_services.runtime.rpc.errors import StorageFull


def written(run_dir: Path, steps: int) -> RowFile:
    """Return a file after `steps` steps of two rows each."""
    file = RowFile(run_dir)
    for _ in range(steps):
        add(file)
    return file


def add(file: RowFile) -> None:
    state = file.state.copy_for_next_step(2)
    file.append([{"row": state.rows}, {"row": state.rows + 1, "text": "ü\n"}], state)


def result(run_dir: Path) -> list[dict[str, Any]]:
    lines = (run_dir / "result" / "data.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_written_rows_are_found_again(tmp_path: Path) -> None:
    written(tmp_path, 3)
    file = RowFile(tmp_path)
    assert (file.state.step, file.state.position, file.state.rows) == (3, 6, 6)
    add(file)
    file.finish()
    assert [row["row"] for row in result(tmp_path)] == list(range(8))
    assert result(tmp_path)[1]["text"] == "ü\n"


def test_rows_of_an_unfinished_step_are_truncated(tmp_path: Path) -> None:
    """A process killed between rows and state repeats the step in the next attempt."""
    written(tmp_path, 2)
    with (tmp_path / "making" / "rows.jsonl").open("a") as file:
        file.write('{"row": 4}\n{"row"')
    again = RowFile(tmp_path)
    add(again)
    again.finish()
    assert [row["row"] for row in result(tmp_path)] == list(range(6))


@pytest.mark.parametrize("spoil", ["changed", "cut", "gone"])
def test_altered_rows_fail_the_job(tmp_path: Path, spoil: str) -> None:
    written(tmp_path, 2)
    path = tmp_path / "making" / "rows.jsonl"
    data = path.read_bytes()
    if spoil == "gone":
        path.unlink()
    else:
        path.write_bytes(data[:-1] if spoil == "cut" else data.replace(b"3", b"7", 1))
    with pytest.raises(UnrecoverableError, match=r"rows\.jsonl was altered: its first \d+ bytes"):
        RowFile(tmp_path)


def test_a_result_is_moved_back_for_more_steps(tmp_path: Path) -> None:
    file = written(tmp_path, 1)
    file.finish()
    assert file.is_finished
    more = RowFile(tmp_path)
    assert more.is_finished and more.state.step == 1
    add(more)
    assert not more.is_finished
    more.finish()
    assert [row["row"] for row in result(tmp_path)] == list(range(4))


def test_a_step_without_rows_is_a_step(tmp_path: Path) -> None:
    file = RowFile(tmp_path)
    file.append([], file.state.copy_for_next_step(5))
    assert (RowFile(tmp_path).state.step, RowFile(tmp_path).state.position) == (1, 5)


def test_a_full_disk_leaves_earlier_rows_intact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path, 1)

    def full(*args: object) -> None:
        raise OSError(28, "No space left on device", "/full")

    monkeypatch.setattr("kubealign_services.roles.driver.data_generation.row_file.replace_file", full)
    with pytest.raises(StorageFull, match="step 2 was not written: No space left on device at /full"):
        add(file)
    assert RowFile(tmp_path).state.step == 1
