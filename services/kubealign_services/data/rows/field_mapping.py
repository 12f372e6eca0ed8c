"""Field mapping: parses a row into an example by the columns that the spec's format names."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from kubealign.spec.base import SpecUnion, field_alias
from kubealign.spec.sections.data import (
    DemonstrationDataset,
    DemonstrationTokens,
    ImitatedTurns,
    PreferenceDataset,
    PromptDataset,
    RatingDataset,
    StepLabels,
    UnpairedDataset,
)
from kubealign_services.data.errors import RowError
from kubealign_services.data.rows.example import Dialogue, Example, Message
from kubealign_services.data.rows.row_reader import RowReader
from kubealign_services.data.rows.templates import fill_last_user_message, fill_template

DataSet: TypeAlias = (
    PromptDataset | DemonstrationDataset | PreferenceDataset | RatingDataset | UnpairedDataset
)


#: Format fields that do not name a column.
_NON_COLUMN_FIELDS = ("turns", "chat_template_kwargs")


def referenced_columns(data: DataSet, spec_path: str) -> dict[str, str]:
    """Return path of the field in the spec -> named column, such as data.prompts.format.text.prompt ->
    question.
    """
    layout = data.format.value
    prefix = f"{spec_path}.format.{field_alias(type(data.format), data.format.member)}"
    columns: dict[str, str] = {}
    for name, setting in layout:
        path = f"{prefix}.{field_alias(type(layout), name)}"
        if isinstance(setting, StepLabels):
            columns[f"{path}.labels"] = setting.labels
        elif name == "ratings" and label_columns(data) is not None:
            continue
        elif isinstance(setting, SpecUnion):
            columns[f"{path}.{field_alias(type(setting), setting.member)}"] = str(setting.value)
        elif isinstance(setting, list):
            columns |= {f"{path}[{index}]": column for index, column in enumerate(setting)}
        elif setting is not None and name not in _NON_COLUMN_FIELDS:
            columns[path] = str(setting)
    return columns


def prompt_column(data: DataSet) -> str | None:
    """Return the column with the prompt's text; None where prompts are messages."""
    text = data.format.text
    return None if text is None else text.prompt


def token_columns(data: DataSet) -> frozenset[str]:
    """Return the columns with token ids, or with the trained ones among them; none where rows are text."""
    layout = data.format.tokens
    if layout is None:
        return frozenset()
    if isinstance(layout, DemonstrationTokens):
        return frozenset((layout.sequence, str(layout.trained.value)))
    return frozenset((layout.prompt, *response_columns(layout).values()))


def response_columns(layout: Any) -> dict[str, str]:
    """Return the columns of responses of a layout with a prompt, by field."""
    names = ("response", "chosen", "rejected")
    return {name: getattr(layout, name) for name in names if hasattr(layout, name)}


def message_columns(data: DataSet) -> tuple[str, ...]:
    """Return the columns with chat messages; none where rows are text or token ids."""
    names = ("messages", "chosen", "rejected")
    return tuple(getattr(data.format.chat, name) for name in names if hasattr(data.format.chat, name))


def chat_template_kwargs(data: DataSet) -> dict[str, Any]:
    """Return the variables of the chat template; none where prompts are text."""
    chat = data.format.chat
    return {} if chat is None else chat.chat_template_kwargs


def label_columns(data: DataSet) -> StepLabels | None:
    """Return the description of the labels of steps; None where the rows have none."""
    if not isinstance(data, RatingDataset) or data.format.tokens is not None:
        return None
    steps: StepLabels | None = data.format.value.steps
    return steps


def read_example(
    data: DataSet, row: Mapping[str, Any], number: int, tools: list[Any] | None = None
) -> Example:
    """Parse a row of text or messages into an example.

    Args:
        tools: JSON schemas of the job's tools; None: those of the row, if any.

    Raises DataError for a column that is missing or has another type.
    """
    cells = RowReader(row, number)
    if data.format.text is not None:
        parts = _text_fields(data, cells)
    elif isinstance(data, PreferenceDataset):
        parts = _preference_fields(data, cells, number)
    else:
        parts = _message_fields(data, cells)
    return Example(number, **parts, **read_annotations(data, cells), tools=tools or _tools(data, cells))


def _tools(data: DataSet, cells: RowReader) -> list[Any] | None:
    chat = data.format.chat
    return None if chat is None or chat.tools is None else cells.tools(chat.tools)


def _text_fields(data: DataSet, cells: RowReader) -> dict[str, Any]:
    layout = data.format.value
    prompt = cells.text(layout.prompt)
    if data.template is not None:
        prompt = fill_template(data.template, prompt, cells)
    columns = {name: getattr(layout, name, None) for name in ("response", "chosen", "rejected")}
    steps = label_columns(data)
    if steps is not None:
        return {
            "prompt": prompt,
            "responses": {"response": cells.joined_text(layout.response, steps.separator)},
        }
    return {
        "prompt": prompt,
        "responses": {name: cells.text(column) for name, column in columns.items() if column is not None},
    }


def _message_fields(data: DataSet, cells: RowReader) -> dict[str, Any]:
    layout = data.format.value
    messages = cells.messages(layout.messages, answered=not isinstance(data, PromptDataset))
    if data.template is not None:
        messages = fill_last_user_message(data.template, messages, cells, layout.messages)
    if isinstance(data, PromptDataset):
        return {"prompt": messages}
    if isinstance(data, DemonstrationDataset) and layout.turns is not ImitatedTurns.LAST:
        indices = select_imitated_turns(messages, layout.turns, cells, layout.messages)
        return {"prompt": messages[: indices[0]], "dialogue": Dialogue(messages, indices)}
    return {"prompt": messages[:-1], "answers": {"response": messages[-1]}}


def _preference_fields(data: PreferenceDataset, cells: RowReader, number: int) -> dict[str, Any]:
    layout = data.format.value
    *prompt, better = cells.messages(layout.chosen, answered=True)
    *rejected_prompt, worse = cells.messages(layout.rejected, answered=True)
    if prompt != rejected_prompt:
        raise RowError(
            number,
            f": {layout.chosen!r} and {layout.rejected!r} differ before their last message: "
            "a preference is between two answers to one prompt",
        )
    if data.template is not None:
        prompt = fill_last_user_message(data.template, prompt, cells, layout.chosen)
    return {"prompt": prompt, "answers": {"chosen": better, "rejected": worse}}


def read_annotations(data: DataSet, cells: RowReader) -> dict[str, Any]:
    """Return the ratings or the labels of the row, by field of Example.

    Raises DataError as `read_example`.
    """
    layout = data.format.value
    if isinstance(data, RatingDataset):
        steps = label_columns(data)
        if steps is not None:
            return {"step_labels": cells.step_labels(steps.labels)}
        return {"ratings": cells.ratings(layout.ratings)}
    if isinstance(data, UnpairedDataset):
        return {"label": cells.label(layout.label)}
    if isinstance(data, PreferenceDataset):
        columns = {name: getattr(layout, name) for name in ("chosen_rating", "rejected_rating")}
        return {name: cells.number(column) for name, column in columns.items() if column is not None}
    return {}


def select_imitated_turns(
    messages: Sequence[Message], turns: ImitatedTurns, cells: RowReader, column: str
) -> list[int]:
    """Return the indices of the imitated messages, at least one.

    Raises DataError for a weight that is neither 0 nor 1, where all are 0, and for an assistant that
    speaks first.
    """
    assistant = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    if turns is ImitatedTurns.LAST:
        return assistant[-1:]
    weighted = turns is ImitatedTurns.WEIGHTED
    selected = [
        index for index in assistant if not weighted or _has_weight(messages[index], index, cells, column)
    ]
    if not selected:
        raise cells.error(column, "every message of the assistant has weight: 0: none is left to imitate")
    if selected[0] == 0:
        raise cells.error(column, "there is no message before the assistant's first, which is to be imitated")
    return selected


def _has_weight(message: Message, index: int, cells: RowReader, column: str) -> bool:
    weight = message.get("weight", 1)
    if weight not in (0, 1):
        raise cells.error(column, f"message {index + 1} has weight: {weight!r}; it may be 0 or 1")
    return bool(weight)
