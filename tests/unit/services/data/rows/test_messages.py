"""Message forms, and errors of messages that no template could render."""

from typing import Any

import pytest

from kubealign.spec.sections.data import Data
from kubealign_services.data.errors import DataError
from kubealign_services.data.rows.field_mapping import read_example
from kubealign_services.data.rows.messages import parse_message, with_system_message

CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1, "unit": None}}}


def test_an_assistants_tool_calls_need_no_content() -> None:
    called = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
    message = {"role": "assistant", "content": None, "tool_calls": [CALL], "weight": None}
    assert parse_message(message) == {"role": "assistant", "tool_calls": [called]}


def test_fields_of_the_template_are_kept() -> None:
    message = {
        "role": "assistant",
        "content": "2",
        "reasoning_content": "add",
        "name": "it",
        "tool_calls": [],
    }
    assert parse_message(message) == message


def test_parts_of_text_are_joined() -> None:
    parts = [{"type": "text", "text": "a "}, {"text": "b", "type": "text", "image_url": None}]
    assert parse_message({"role": "user", "content": parts}) == {"role": "user", "content": "a b"}


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ({"content": "x"}, r"is .* not \{role: text, content: text\}"),
        (
            {"role": "user", "content": None},
            r".* content may also be a list of parts of text",
        ),
        (
            {"role": "user", "content": None, "tool_calls": [CALL]},
            r".* null for an assistant with tool_call",
        ),
        (
            {"role": "assistant", "content": None, "tool_calls": []},
            r".* null for an assistant with tool_call",
        ),
        ({"role": "user", "content": 3}, r"is .* not \{role: text, content: text\}"),
        (
            {
                "role": "user",
                "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": "x"}],
            },
            "has the content part 2 of type 'image_url'; only text is supported: remove the part",
        ),
        (
            {"role": "user", "content": [{"type": "text"}]},
            r"has the content part 1 .*, not \{type: text, text",
        ),
        ({"role": "user", "content": ["a"]}, r"has the content part 1 'a' \(str\), not \{type: text, text"),
    ],
)
def test_messages_that_cannot_be_rendered(message: Any, problem: str) -> None:
    data = Data.model_validate({"prompts": {"source": {"path": "/rows.jsonl"}, "format": {"chat": {}}}})
    row = {"messages": [{"role": "user", "content": "a"}, message]}
    with pytest.raises(DataError, match=f"row 8: column 'messages', message 2 {problem}"):
        read_example(data.value, row, 7)


def test_a_system_message_is_added_where_the_row_has_none() -> None:
    question, system = {"role": "user", "content": "2+2?"}, {"role": "system", "content": "Be brief."}
    own = {"role": "system", "content": "Be kind."}
    assert with_system_message({"messages": [question], "id": 1}, ["messages"], "Be brief.") == {
        "messages": [system, question],
        "id": 1,
    }
    with_own = {"messages": [own, question]}
    assert with_system_message(with_own, ["messages"], "Be brief.") is with_own
    pair = {"chosen": [question], "rejected": [question]}
    assert with_system_message(pair, ["chosen", "rejected"], "Be brief.") == {
        "chosen": [system, question],
        "rejected": [system, question],
    }
    # Adding one to a single side would hide that the two sides differ.
    pair = {"chosen": [own, question], "rejected": [question]}
    assert with_system_message(pair, ["chosen", "rejected"], "Be brief.") is pair
    wrong = {"messages": "2+2?"}
    assert with_system_message(wrong, ["messages", "other"], "Be brief.") == wrong
