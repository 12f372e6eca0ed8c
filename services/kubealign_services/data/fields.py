"""Field mapping: parses a row into an example by the columns that the spec's format names."""

from collections.abc import Mapping
from typing import Any, TypeAlias

from kubealign.spec.base import alias
from kubealign.spec.data import Demonstrations, Preferences, Prompts, Ratings, Turns, Unpaired
from kubealign_services.data.cells import Cells
from kubealign_services.data.errors import DataError
from kubealign_services.data.example import Dialogue, Example
from kubealign_services.data.templates import filled, with_user_filled
from kubealign_services.data.turns import imitated

DataSet: TypeAlias = Prompts | Demonstrations | Preferences | Ratings | Unpaired

#: Format fields that do not name a column.
_NO_COLUMN = ("turns",)


def named_columns(data: DataSet, place: str) -> dict[str, str]:
    """Return path of the field in the spec -> named column, such as data.prompts.format.text.prompt ->
    question.
    """
    layout = data.format.value
    prefix = f"{place}.format.{alias(type(data.format), data.format.member)}"
    columns: dict[str, str] = {}
    for name, setting in layout:
        path = f"{prefix}.{alias(type(layout), name)}"
        if isinstance(setting, list):
            columns |= {f"{path}[{index}]": column for index, column in enumerate(setting)}
        elif setting is not None and name not in _NO_COLUMN:
            columns[path] = str(setting)
    return columns


def prompt_column(data: DataSet) -> str | None:
    """Return the column with the prompt's text; None where prompts are messages."""
    text = data.format.text
    return None if text is None else text.prompt


def read(data: DataSet, row: Mapping[str, Any], number: int) -> Example:
    """Parse the row into an example. Raises DataError for a column that is missing or has another type."""
    cells = Cells(row, number)
    if data.format.text is not None:
        parts = _texts(data, cells)
    elif isinstance(data, Preferences):
        parts = _pair_of_messages(data, cells, number)
    else:
        parts = _messages(data, cells)
    return Example(number, **parts, **_said(data, cells))


def _texts(data: DataSet, cells: Cells) -> dict[str, Any]:
    layout = data.format.value
    prompt = cells.text(layout.prompt)
    if data.template is not None:
        prompt = filled(data.template, prompt, cells)
    columns = {name: getattr(layout, name, None) for name in ("response", "chosen", "rejected")}
    return {
        "prompt": prompt,
        "responses": {name: cells.text(column) for name, column in columns.items() if column is not None},
    }


def _messages(data: DataSet, cells: Cells) -> dict[str, Any]:
    layout = data.format.value
    messages = cells.messages(layout.messages, "user" if isinstance(data, Prompts) else "assistant")
    if data.template is not None:
        messages = with_user_filled(data.template, messages, cells, layout.messages)
    if isinstance(data, Prompts):
        return {"prompt": messages}
    if isinstance(data, Demonstrations) and layout.turns is not Turns.LAST:
        indices = imitated(messages, layout.turns, cells, layout.messages)
        return {"prompt": messages[: indices[0]], "dialogue": Dialogue(messages, indices)}
    return {"prompt": messages[:-1], "responses": {"response": messages[-1]["content"]}}


def _pair_of_messages(data: Preferences, cells: Cells, number: int) -> dict[str, Any]:
    layout = data.format.value
    *prompt, better = cells.messages(layout.chosen, "assistant")
    *rejected_prompt, worse = cells.messages(layout.rejected, "assistant")
    if prompt != rejected_prompt:
        raise DataError(
            f"row {number + 1}: {layout.chosen!r} and {layout.rejected!r} differ before their last message: "
            "a preference is between two answers to one prompt"
        )
    if data.template is not None:
        prompt = with_user_filled(data.template, prompt, cells, layout.chosen)
    return {"prompt": prompt, "responses": {"chosen": better["content"], "rejected": worse["content"]}}


def _said(data: DataSet, cells: Cells) -> dict[str, Any]:
    """Return the ratings or the label of the row."""
    layout = data.format.value
    if isinstance(data, Ratings):
        return {"ratings": cells.ratings(layout.ratings)}
    if isinstance(data, Unpaired):
        return {"label": cells.label(layout.label)}
    if isinstance(data, Preferences):
        columns = {name: getattr(layout, name) for name in ("chosen_rating", "rejected_rating")}
        return {name: cells.number(column) for name, column in columns.items() if column is not None}
    return {}
