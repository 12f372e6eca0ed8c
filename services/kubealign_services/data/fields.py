"""Field mapping: which columns of a row hold the prompt, the responses and the rating."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from kubealign.spec.base import alias
from kubealign.spec.data import Demonstrations, Preferences, Prompts, Ratings
from kubealign_services.data.errors import DataError

DataSet: TypeAlias = Prompts | Demonstrations | Preferences | Ratings
Message: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Example:
    """What a row says. `number` is its index in the source, from 0 (errors count from 1).

    responses: "response", or "chosen" and "rejected", or none for rows that are prompts only.
    """

    number: int
    prompt: str | list[Message]
    responses: dict[str, str] = field(default_factory=dict)
    rating: float | None = None


def named_columns(data: DataSet, place: str) -> dict[str, str]:
    """Path of the field in the spec -> the column it names, such as data.prompts.format.text.prompt ->
    question."""
    layout = data.format.value
    prefix = f"{place}.format.{alias(type(data.format), data.format.member)}"
    return {f"{prefix}.{alias(type(layout), name)}": str(column) for name, column in layout}


def prompt_column(data: DataSet) -> str | None:
    """The column that holds the prompt's text; None where prompts are messages."""
    text = data.format.text
    return None if text is None else text.prompt


def read(data: DataSet, row: Mapping[str, Any], number: int) -> Example:
    """The row's example. Raises DataError for a column that is missing or holds something else than it
    must."""
    if data.format.text is not None:
        layout = data.format.text.model_dump()
        prompt = _text(row, layout.pop("prompt"), number)
        rating = _number(row, layout.pop("rating"), number) if "rating" in layout else None
        return Example(
            number, prompt, {name: _text(row, column, number) for name, column in layout.items()}, rating
        )
    if isinstance(data, Prompts):
        assert data.format.chat is not None
        return Example(number, _messages(row, data.format.chat.messages, number, "user"))
    if isinstance(data, Demonstrations):
        assert data.format.chat is not None
        *prompt_messages, answer = _messages(row, data.format.chat.messages, number, "assistant")
        return Example(number, prompt_messages, {"response": answer["content"]})
    assert isinstance(data, Preferences)
    assert data.format.chat is not None
    return _preference(row, data.format.chat.chosen, data.format.chat.rejected, number)


def _preference(row: Mapping[str, Any], chosen: str, rejected: str, number: int) -> Example:
    *prompt, better = _messages(row, chosen, number, "assistant")
    *other, worse = _messages(row, rejected, number, "assistant")
    if prompt != other:
        raise DataError(
            f"row {number + 1}: {chosen!r} and {rejected!r} differ before their last message: "
            "a preference is between two answers to one prompt"
        )
    return Example(number, prompt, {"chosen": better["content"], "rejected": worse["content"]})


def _value(row: Mapping[str, Any], column: str, number: int) -> Any:
    if column not in row:
        raise DataError(f"row {number + 1} has no column {column!r}; it has {', '.join(map(repr, row))}")
    return row[column]


def _text(row: Mapping[str, Any], column: str, number: int) -> str:
    value = _value(row, column, number)
    if not isinstance(value, str):
        raise DataError(f"row {number + 1}: column {column!r} holds {_shown(value)}, not text")
    return value


def _number(row: Mapping[str, Any], column: str, number: int) -> float:
    value = _value(row, column, number)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise DataError(f"row {number + 1}: column {column!r} holds {_shown(value)}, not a finite number")
    return float(value)


def _messages(row: Mapping[str, Any], column: str, number: int, last_role: str) -> list[Message]:
    value = _value(row, column, number)
    where = f"row {number + 1}: column {column!r}"
    if not isinstance(value, list) or not value:
        raise DataError(f"{where} holds {_shown(value)}, not a list of messages")
    messages: list[Message] = []
    for index, item in enumerate(value):
        if not isinstance(item, dict) or not all(
            isinstance(item.get(key), str) for key in ("role", "content")
        ):
            raise DataError(
                f"{where}, message {index + 1} is {_shown(item)}, not {{role: text, content: text}}"
            )
        # Parquet gives every message the keys of all; what a message lacks is null.
        messages.append({key: held for key, held in item.items() if held is not None})
    if messages[-1]["role"] != last_role:
        raise DataError(
            f"{where}: the last message is the {messages[-1]['role']}'s; it must be the {last_role}'s"
        )
    if last_role == "assistant" and len(messages) == 1:
        raise DataError(f"{where}: there is no message before the assistant's")
    return messages


def _shown(value: Any) -> str:
    shown = repr(value)
    return f"{shown if len(shown) <= 60 else shown[:57] + '...'} ({type(value).__name__})"
