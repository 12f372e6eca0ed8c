"""Prompts with the hint of their row, for a teacher."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kubealign.spec.algorithms import Hint, HintMessage
from kubealign_services.data.rows.example import Example, Message
from kubealign_services.data.rows.field_mapping import DataSet, message_columns
from kubealign_services.data.rows.row_reader import RowReader
from kubealign_services.data.rows.templates import fill_last_user_message, fill_template, last_user_index


def add_hint(example: Example, hint: Hint, data: DataSet, row: Mapping[str, Any]) -> Example:
    """Return the example of a prompt as the teacher reads it.

    Raises RowError for a column that is missing, or neither text nor number.
    """
    cells = RowReader(row, example.number)
    if isinstance(example.prompt, str):
        return replace(example, prompt=fill_template(hint.template, example.prompt, cells))
    (column,) = message_columns(data)
    if hint.message is HintMessage.USER:
        return replace(example, prompt=fill_last_user_message(hint.template, example.prompt, cells, column))
    index = last_user_index(example.prompt, cells, column)
    text = fill_template(hint.template, example.prompt[index]["content"], cells)
    return replace(example, prompt=_with_system_text(example.prompt, text))


def _with_system_text(messages: list[Message], text: str) -> list[Message]:
    """Return the messages with a text at the end of the system message, which may be a new one."""
    first = messages[0]
    if first["role"] != "system":
        return [{"role": "system", "content": text}, *messages]
    return [{**first, "content": f"{first['content']}\n\n{text}"}, *messages[1:]]
