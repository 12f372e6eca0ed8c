"""Which columns hold what, and what is said of rows that hold something else."""

from typing import Any

import pytest

from kubealign.spec.data import Data
from kubealign_services.data.errors import DataError
from kubealign_services.data.fields import Example, named_columns, read

SOURCE = {"source": {"path": "/rows.jsonl"}}
USER, ANSWER = {"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}


def data(member: str, **fields: Any) -> Any:
    return Data.model_validate({member: SOURCE | fields}).value


def test_the_four_kinds_of_text() -> None:
    row = {"prompt": "p", "response": "r", "chosen": "c", "rejected": "x", "rating": 3}
    assert read(data("prompts"), row, 0) == Example(0, "p")
    assert read(data("demonstrations"), row, 1) == Example(1, "p", {"response": "r"})
    assert read(data("preferences"), row, 2) == Example(2, "p", {"chosen": "c", "rejected": "x"})
    assert read(data("ratings"), row, 3) == Example(3, "p", {"response": "r"}, 3.0)


def test_the_three_kinds_of_messages() -> None:
    chat: dict[str, Any] = {"format": {"chat": {}}}
    assert read(data("prompts", **chat), {"messages": [USER]}, 0) == Example(0, [USER])
    assert read(data("demonstrations", **chat), {"messages": [USER, ANSWER]}, 0) == Example(
        0, [USER], {"response": "4"}
    )
    worse = {"role": "assistant", "content": "5"}
    row = {"chosen": [USER, ANSWER], "rejected": [USER, worse]}
    assert read(data("preferences", **chat), row, 0) == Example(0, [USER], {"chosen": "4", "rejected": "5"})


def test_what_parquet_adds_to_messages_is_taken_away() -> None:
    row = {"messages": [USER | {"name": None}]}
    assert read(data("prompts", format={"chat": {}}), row, 0).prompt == [USER]


def test_named_columns_know_their_place() -> None:
    mapped = data("demonstrations", format={"text": {"prompt": "question", "response": "answer"}})
    assert named_columns(mapped, "spec.data.demonstrations") == {
        "spec.data.demonstrations.format.text.prompt": "question",
        "spec.data.demonstrations.format.text.response": "answer",
    }


@pytest.mark.parametrize(
    ("member", "fields", "row", "said"),
    [
        ("prompts", {}, {"prompt": 5}, r"row 8: column 'prompt' holds 5 \(int\), not text"),
        ("prompts", {}, {"prompt": None}, r"column 'prompt' holds None \(NoneType\), not text"),
        ("prompts", {}, {"question": "x"}, r"row 8 has no column 'prompt'; it has 'question'"),
        ("ratings", {}, {"prompt": "p", "response": "r", "rating": "5"}, "not a finite number"),
        ("ratings", {}, {"prompt": "p", "response": "r", "rating": True}, "not a finite number"),
        ("ratings", {}, {"prompt": "p", "response": "r", "rating": float("nan")}, "not a finite number"),
        ("prompts", {"format": {"chat": {}}}, {"messages": "hi"}, "not a list of messages"),
        ("prompts", {"format": {"chat": {}}}, {"messages": []}, "not a list of messages"),
        ("prompts", {"format": {"chat": {}}}, {"messages": [{"role": "user"}]}, "message 1 is"),
        (
            "prompts",
            {"format": {"chat": {}}},
            {"messages": [USER, ANSWER]},
            "the assistant's; it must be the user's",
        ),
        ("demonstrations", {"format": {"chat": {}}}, {"messages": [USER]}, "it must be the assistant's"),
        (
            "demonstrations",
            {"format": {"chat": {}}},
            {"messages": [ANSWER]},
            "no message before the assistant's",
        ),
        (
            "preferences",
            {"format": {"chat": {}}},
            {"chosen": [USER, ANSWER], "rejected": [USER | {"content": "?"}, ANSWER]},
            "differ before their last message",
        ),
    ],
)
def test_rows_that_hold_something_else(member: str, fields: Any, row: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        read(data(member, **fields), row, 7)
