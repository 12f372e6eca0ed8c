"""Responses of validations in the files of a run directory."""

import json
from pathlib import Path
from typing import Any

from kubealign.client.backends.local.metrics import read_validation
from kubealign.validation_record import ValidationRecord, parse_validation_record


def write(folder: Path, step: int, *documents: Any) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [text if isinstance(text, str) else json.dumps(text) + "\n" for text in documents]
    (folder / f"step-{step:06d}.jsonl").write_text("".join(lines))


def response(row: int, text: str = "r") -> dict[str, Any]:
    return {"group_id": f"val@5/{row}", "prompt": f"p{row}", "response": text, "scores": {"right": 1.0}}


def test_responses_are_read_by_set_and_row(tmp_path: Path) -> None:
    write(tmp_path, 5, response(10), response(9, "first"), response(9, "second"), '{"group_id": "val@5')
    write(tmp_path / "hard", 5, response(0))
    write(tmp_path / "hard", 6, response(0))
    records = read_validation(tmp_path, 5)
    assert [(record.set_name, record.row, record.response) for record in records] == [
        ("", 9, "first"),
        ("", 9, "second"),
        ("", 10, "r"),
        ("hard", 0, "r"),
    ]
    assert read_validation(tmp_path, 7) == []
    assert read_validation(tmp_path / "missing", 5) == []


def test_values_of_other_types_count_as_absent() -> None:
    document = {
        "group_id": ["val@5/3"],
        "prompt": "p",
        "response": None,
        "scores": {"a": "high", "b": None, "c": "nan", "d": True},
        "explanations": {"a": 1, "b": "text"},
        "truncated": "yes",
    }
    record = parse_validation_record(document, "hard")
    assert (record.row, record.set_name, record.truncated) == (-1, "hard", False)
    assert set(record.scores) == {"b", "c"}
    assert record.explanations == {"b": "text"}
    assert parse_validation_record({"scores": [1], "explanations": "x"}) == ValidationRecord(-1, "", "")
