"""Chat messages of a row: checked, and in the form that chat templates read."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from kubealign_services.data.rows.example import Message


class InvalidMessage(ValueError):
    """A message that cannot be rendered; the text completes "message 3 ..."."""


def parse_message(item: Any) -> Message:
    """Return the message without null fields, and with its parts of text joined.

    All fields beside role and content, such as tool_calls, reasoning_content and name, are the template's.
    Null fields are left out at every depth: Parquet gives every object the union of all keys.

    Raises:
        InvalidMessage: No role, no content (which only an assistant's tool calls replace), or a content part
            that is not text.
    """
    message = without_nulls(item)
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise InvalidMessage(f"is {describe_value(item)}, not {{role: text, content: text}}")
    if "content" not in message and message["role"] == "assistant" and message.get("tool_calls"):
        return message
    content = message.get("content")
    if isinstance(content, list):
        return message | {"content": "".join(_part_text(part, i) for i, part in enumerate(content))}
    if not isinstance(content, str):
        raise InvalidMessage(
            f"is {describe_value(item)}, not {{role: text, content: text}}; content may also be a list of "
            "parts of text, and null for an assistant with tool_calls"
        )
    return message


def message_text(message: Mapping[str, Any]) -> str:
    """Return a message's content as text, followed by its tool calls as JSON, one per line."""
    content = message.get("content") or ""
    if isinstance(content, list):
        content = "".join(_part_text(part, index) for index, part in enumerate(content))
    calls = [json.dumps(call, ensure_ascii=False) for call in message.get("tool_calls") or ()]
    return "\n".join([str(content), *calls] if content else calls)


def with_system_message(row: Mapping[str, Any], columns: Sequence[str], text: str) -> Mapping[str, Any]:
    """Return the row with a system message before the messages of these columns.

    A row with a system message of its own in one of the columns is unchanged. A value that is not a list
    stays as it is: the reader of the row refuses it.
    """
    conversations = {column: row[column] for column in columns if isinstance(row.get(column), list)}
    messages = [message for messages in conversations.values() for message in messages]
    if any(isinstance(message, Mapping) and message.get("role") == "system" for message in messages):
        return row
    first = {"role": "system", "content": text}
    return {**row, **{column: [first, *messages] for column, messages in conversations.items()}}


def without_nulls(value: Any) -> Any:
    """Return the value without null fields of objects, at every depth."""
    if isinstance(value, Mapping):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value


def describe_value(value: Any) -> str:
    """Return a value, shortened, with its type."""
    shown = repr(value)
    return f"{shown if len(shown) <= 60 else shown[:57] + '...'} ({type(value).__name__})"


def _part_text(part: Any, index: int) -> str:
    kind = part.get("type", "text") if isinstance(part, Mapping) else None
    if kind not in (None, "text"):
        raise InvalidMessage(
            f"has the content part {index + 1} of type {kind!r}; only text is supported: remove the part"
        )
    if kind is None or not isinstance(part.get("text"), str):
        raise InvalidMessage(
            f"has the content part {index + 1} {describe_value(part)}, not {{type: text, text: text}}"
        )
    return str(part["text"])
