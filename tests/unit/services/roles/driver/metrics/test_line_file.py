"""Append-only file of lines."""

from pathlib import Path

from kubealign_services.roles.driver.metrics.report import append_lines


def test_a_partial_line_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    append_lines(path, '{"step": 1}\n')
    assert path.read_text() == '{"step": 1}\n'
    with path.open("a") as file:
        file.write('{"step": 2, "rew')
    append_lines(path, '{"step": 2}\n{"step": 3}\n')
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n{"step": 3}\n'


def test_a_partial_first_line_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "rew')
    append_lines(path, '{"step": 1}\n')
    assert path.read_text() == '{"step": 1}\n'
