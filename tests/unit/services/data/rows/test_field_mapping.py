"""Field mapping of rows, and errors of invalid rows."""

from typing import Any

import pytest

from kubealign.spec.sections.data import Data
from kubealign_services.data.errors import DataError
from kubealign_services.data.rows.example import Dialogue, Example
from kubealign_services.data.rows.field_mapping import read_example, referenced_columns

SOURCE = {"source": {"path": "/rows.jsonl"}}
USER, ANSWER = {"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}
WRONG = {"role": "assistant", "content": "5"}


def data(member: str, **fields: Any) -> Any:
    return Data.model_validate({member: SOURCE | fields}).value


ROW = {
    "prompt": "p",
    "response": "r",
    "chosen": "c",
    "rejected": "x",
    "rating": 3,
    "wit": None,
    "label": False,
    "better": 4,
    "worse": 1.5,
}


def test_text_formats() -> None:
    assert read_example(data("prompts"), ROW, 0) == Example(0, "p")
    assert read_example(data("demonstrations"), ROW, 1) == Example(1, "p", {"response": "r"})
    assert read_example(data("preferences"), ROW, 2) == Example(2, "p", {"chosen": "c", "rejected": "x"})
    assert read_example(data("ratings"), ROW, 3) == Example(3, "p", {"response": "r"}, ratings=[3.0])
    assert read_example(data("unpaired"), ROW, 4) == Example(4, "p", {"response": "r"}, label=False)


def test_a_text_is_one_message_of_the_user() -> None:
    chat = {"format": {"chat": {"messages": "question"}}}
    row = {"question": "2+2?", "options": ["3", "4"]}
    assert read_example(data("prompts", **chat), row, 0).prompt == [USER]
    template = "{prompt}\n{options:lettered}\n\n{options}"
    filled = read_example(data("prompts", **chat, template=template), row, 0)
    assert filled.prompt == [{"role": "user", "content": "2+2?\nA) 3\nB) 4\n\n3\n4"}]
    with pytest.raises(DataError, match="not a list of messages"):
        read_example(data("demonstrations", **chat), row, 0)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ([], "not a list of texts"),
        (["3", 4], "not a list of texts"),
        ("3", "not a list"),
        (["x"] * 27, "has 27 choices; there are letters for 26"),
    ],
)
def test_lettered_choices_are_a_list_of_texts(options: Any, problem: str) -> None:
    rows = data("prompts", template="{prompt} {options:lettered}")
    with pytest.raises(DataError, match=f"column 'options'.*{problem}"):
        read_example(rows, {"prompt": "p", "options": options}, 0)


def test_ratings_with_an_unknown_one() -> None:
    columns = {"format": {"text": {"ratings": ["wit", "rating"]}}}
    assert read_example(data("ratings", **columns), ROW, 0).ratings == [None, 3.0]


def test_preferences_with_ratings() -> None:
    rated = {"chosenRating": "better", "rejectedRating": "worse"}
    example = read_example(data("preferences", format={"text": rated}), ROW, 0)
    assert example == Example(
        0, "p", {"chosen": "c", "rejected": "x"}, chosen_rating=4.0, rejected_rating=1.5
    )
    row = {"chosen": [USER, ANSWER], "rejected": [USER, WRONG], "better": 4, "worse": 1.5}
    example = read_example(data("preferences", format={"chat": rated}), row, 0)
    assert (example.chosen_rating, example.rejected_rating) == (4.0, 1.5)


@pytest.mark.parametrize(
    ("value", "label"), [(True, True), (False, False), (1, True), (0, False), (1.0, True)]
)
def test_labels(value: Any, label: bool) -> None:
    example = read_example(data("unpaired"), ROW | {"label": value}, 0)
    assert example.label is label


def test_message_formats() -> None:
    chat: dict[str, Any] = {"format": {"chat": {}}}
    assert read_example(data("prompts", **chat), {"messages": [USER]}, 0) == Example(0, [USER])
    answered = {"messages": [USER, ANSWER], "rating": 2, "label": 1}
    assert read_example(data("demonstrations", **chat), answered, 0) == Example(
        0, [USER], answers={"response": ANSWER}
    )
    assert read_example(data("ratings", **chat), answered, 0) == Example(
        0, [USER], answers={"response": ANSWER}, ratings=[2.0]
    )
    assert read_example(data("unpaired", **chat), answered, 0) == Example(
        0, [USER], answers={"response": ANSWER}, label=True
    )
    row = {"chosen": [USER, ANSWER], "rejected": [USER, WRONG]}
    assert read_example(data("preferences", **chat), row, 0) == Example(
        0, [USER], answers={"chosen": ANSWER, "rejected": WRONG}
    )


def test_imitated_turns() -> None:
    """The prompt ends where the first imitated message begins."""
    skipped = ANSWER | {"weight": 0}
    messages = [USER, skipped, USER, ANSWER | {"weight": 1}, USER, WRONG]

    def read_with(turns: str, value: list[Any] = messages) -> Example:
        return read_example(data("demonstrations", format={"chat": {"turns": turns}}), {"messages": value}, 0)

    assert read_with("Last") == Example(0, messages[:-1], answers={"response": WRONG})
    assert read_with("All") == Example(0, [USER], dialogue=Dialogue(messages, [1, 3, 5]))
    assert read_with("Weighted") == Example(0, messages[:3], dialogue=Dialogue(messages, [3, 5]))
    with pytest.raises(DataError, match=r"row 1: column 'messages': every message .* has weight: 0"):
        read_with("Weighted", [USER, skipped])
    with pytest.raises(DataError, match=r"message 2 has weight: 0\.5; it may be 0 or 1"):
        read_with("Weighted", [USER, ANSWER | {"weight": 0.5}])
    with pytest.raises(DataError, match="no message before the assistant's first"):
        read_with("All", [ANSWER, USER, ANSWER])


def test_null_fields_of_parquet_messages_are_removed() -> None:
    row = {"messages": [USER | {"name": None}]}
    assert read_example(data("prompts", format={"chat": {}}), row, 0).prompt == [USER]


def test_referenced_columns_by_spec_path() -> None:
    mapped = data("demonstrations", format={"text": {"prompt": "question", "response": "answer"}})
    assert referenced_columns(mapped, "spec.data.demonstrations") == {
        "spec.data.demonstrations.format.text.prompt": "question",
        "spec.data.demonstrations.format.text.response": "answer",
    }
    chat = {"chat": {"ratings": ["wit", "rating"]}}
    assert referenced_columns(data("ratings", format=chat), "d") == {
        "d.format.chat.messages": "messages",
        "d.format.chat.ratings[0]": "wit",
        "d.format.chat.ratings[1]": "rating",
    }
    turns = {"chat": {"turns": "All"}}
    assert referenced_columns(data("demonstrations", format=turns), "d") == {
        "d.format.chat.messages": "messages"
    }
    rated = {"text": {"chosenRating": "better"}}
    assert referenced_columns(data("preferences", format=rated), "d") == {
        "d.format.text.prompt": "prompt",
        "d.format.text.chosen": "chosen",
        "d.format.text.rejected": "rejected",
        "d.format.text.chosenRating": "better",
    }


@pytest.mark.parametrize(
    ("member", "fields", "row", "message"),
    [
        ("prompts", {}, {"prompt": 5}, r"row 8: column 'prompt' holds 5 \(int\), not text"),
        ("prompts", {}, {"prompt": None}, r"column 'prompt' holds None \(NoneType\), not text"),
        ("prompts", {}, {"question": "x"}, r"row 8 has no column 'prompt'; it has 'question'"),
        ("ratings", {}, {"prompt": "p", "response": "r", "rating": "5"}, "not a finite number"),
        ("ratings", {}, {"prompt": "p", "response": "r", "rating": True}, "not a finite number"),
        ("ratings", {}, {"prompt": "p", "response": "r", "rating": float("nan")}, "not a finite number"),
        ("ratings", {}, {"prompt": "p", "response": "r", "rating": None}, "'rating' are null: one must be"),
        (
            "unpaired",
            {},
            {"prompt": "p", "response": "r", "label": "true"},
            r"'true' \(str\), not true or false",
        ),
        ("unpaired", {}, {"prompt": "p", "response": "r", "label": 2}, r"holds 2 \(int\), not true or false"),
        ("unpaired", {}, {"prompt": "p", "response": "r", "label": None}, "not true or false"),
        (
            "preferences",
            {"format": {"text": {"chosenRating": "better"}}},
            {"prompt": "p", "chosen": "c", "rejected": "x", "better": None},
            r"column 'better' holds None \(NoneType\), not a finite number",
        ),
        ("prompts", {"format": {"chat": {}}}, {"messages": 4}, "not a list of messages"),
        ("prompts", {"format": {"chat": {}}}, {"messages": []}, "not a list of messages"),
        ("prompts", {"format": {"chat": {}}}, {"messages": [{"role": "user"}]}, "message 1 is"),
        (
            "prompts",
            {"format": {"chat": {}}},
            {"messages": [USER, ANSWER]},
            "the assistant's; it must be the user's or a tool's",
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
def test_invalid_rows_are_reported(member: str, fields: Any, row: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        read_example(data(member, **fields), row, 7)
