"""Prompt templates with columns, and columns with fixed values."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from kubealign.spec.placeholders import fill_placeholders, placeholder_names
from kubealign.spec.sections.data import Data
from kubealign_services.data.errors import DataError
from kubealign_services.data.rows.field_mapping import read_example
from kubealign_services.data.rows.templates import check_template_columns
from kubealign_services.data.sources.row_dataset import open_source

USER, ANSWER = {"role": "user", "content": "2+2?"}, {"role": "assistant", "content": "4"}


def data(member: str, template: str, **fields: Any) -> Any:
    source = {"source": {"path": "/rows.jsonl"}}
    return Data.model_validate({member: source | fields | {"template": template}}).value


def test_names_and_braces() -> None:
    assert placeholder_names("{a} {{b}} {c d} {a}{e.f:g}") == ["a", "c d", "e.f:g"]
    assert fill_placeholders("{{{a}}} {b}{{}}", {"a": "x", "b": "{c}"}.__getitem__) == "{x} {c}{}"


@given(st.text(), st.text())
def test_a_text_with_its_braces_doubled_is_itself(text: str, value: str) -> None:
    doubled = text.replace("{", "{{").replace("}", "}}")
    assert fill_placeholders(doubled, str) == text
    assert fill_placeholders(doubled + "{name}", lambda name: value) == text + value


@pytest.mark.parametrize("template", ["{", "a } b", "{{}", "{}", "{a{b}}"])
def test_a_brace_that_stands_alone_is_refused_by_the_spec(template: str) -> None:
    with pytest.raises(ValidationError, match=r"has a single [{}] at character \d+: write (\{\{|\}\})"):
        data("prompts", template)


@pytest.mark.parametrize(
    ("value", "written"),
    [(4, "4"), (4.0, "4"), (0.5, "0.5"), (-1e-07, "-1e-07"), (True, "true"), ("so {x}", "so {x}"), ("", "")],
)
def test_numbers_are_written_plainly(value: Any, written: str) -> None:
    row = {"prompt": "p", "quality": value}
    assert (
        read_example(data("prompts", "{prompt} quality:{quality}"), row, 0).prompt == f"p quality:{written}"
    )


@pytest.mark.parametrize("value", [None, [1], {"a": 1}, float("nan")])
def test_non_text_values_are_rejected(value: Any) -> None:
    with pytest.raises(
        DataError, match=r"row 3: column 'quality' holds .*, not a text, number or list of texts to be put"
    ):
        read_example(data("prompts", "{quality}"), {"prompt": "p", "quality": value}, 2)


def test_prompt_placeholder_is_independent_of_the_column() -> None:
    named = data("demonstrations", "{prompt}/{question}/{answer}", format={"text": TEXT})
    example = read_example(named, {"question": "q", "answer": "a", "prompt": "another"}, 0)
    assert (example.prompt, example.responses) == ("q/q/a", {"response": "a"})


TEXT = {"prompt": "question", "response": "answer"}


def test_template_replaces_the_last_user_message() -> None:
    chat: dict[str, Any] = {"format": {"chat": {}}}
    first, again = USER | {"content": "hi"}, ANSWER | {"content": "hello"}
    asked = USER | {"content": "[3] 2+2?"}
    talk = {"messages": [first, again, USER, ANSWER], "mood": 3, "rating": 1, "label": True}
    for member in ("demonstrations", "ratings", "unpaired"):
        assert read_example(data(member, "[{mood}] {prompt}", **chat), talk, 0).prompt == [
            first,
            again,
            asked,
        ]
    prompt = {"messages": [first, again, USER], "mood": 3}
    assert read_example(data("prompts", "[{mood}] {prompt}", **chat), prompt, 0).prompt == [
        first,
        again,
        asked,
    ]
    pair = {"chosen": [USER, ANSWER], "rejected": [USER, again], "mood": 3}
    assert read_example(data("preferences", "[{mood}] {prompt}", **chat), pair, 0).prompt == [asked]
    assert talk["messages"][2] is USER and USER["content"] == "2+2?"


def test_template_replaces_the_last_user_message_of_a_dialogue() -> None:
    turns = data("demonstrations", "[{mood}] {prompt}", format={"chat": {"turns": "All"}})
    example = read_example(turns, {"messages": [USER, ANSWER, USER, ANSWER], "mood": 3}, 0)
    assert example.dialogue is not None
    text = [message["content"] for message in example.dialogue.messages]
    assert text == ["2+2?", "4", "[3] 2+2?", "4"]


def test_template_without_a_user_message_is_rejected() -> None:
    system = {"role": "system", "content": "s"}
    with pytest.raises(DataError, match="row 1: column 'messages': the template replaces the user's last"):
        read_example(
            data("demonstrations", "{prompt}", format={"chat": {}}), {"messages": [system, ANSWER]}, 0
        )


def test_missing_template_column_is_reported_before_reading() -> None:
    check_template_columns("{prompt} {mood}", ["question", "mood"], "spec.data.prompts.template")
    with pytest.raises(DataError) as caught:
        check_template_columns("{prompt} {moood}", ["question", "mood"], "spec.data.prompts.template")
    assert str(caught.value) == (
        "spec.data.prompts.template: {moood} is no column; there are 'prompt', 'question', 'mood' "
        "({{ and }} stand for braces)"
    )
    with pytest.raises(DataError, match=r"row 2 has no column 'mood'; it has 'prompt'"):
        read_example(data("prompts", "{mood}"), {"prompt": "p"}, 1)


def test_values_override_row_columns(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"prompt": "p", "quality": n}) + "\n" for n in (0, 1)))
    prompts = data("prompts", "{prompt} {quality} {lang}", values={"quality": 4, "lang": "en"})
    rows = open_source(prompts.source.model_copy(update={"path": str(path)}), "d", tmp_path)
    valued = rows.with_columns(prompts.values)
    assert valued.columns == ("prompt", "quality", "lang")
    assert list(valued) == [{"prompt": "p", "quality": 4, "lang": "en"}] * 2
    assert read_example(prompts, next(iter(valued)), 0).prompt == "p 4 en"
    assert [row["quality"] for row in rows] == [0, 1]
