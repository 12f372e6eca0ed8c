"""Prompt templates filled with a row's columns."""

from collections.abc import Iterable, Sequence

from kubealign.spec.placeholders import fill_placeholders, placeholder_names
from kubealign_services.data.errors import DataError
from kubealign_services.data.rows.example import Message
from kubealign_services.data.rows.row_reader import RowReader

#: Placeholder for the row's prompt, independent of its column's name.
PROMPT = "prompt"
#: End of a placeholder whose column is a list of texts, written as the choices A) to Z).
LETTERED = ":lettered"
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def check_template_columns(template: str, columns: Iterable[str], spec_path: str) -> None:
    """Raise DataError unless the rows have every column that the template names.

    Args:
        spec_path: Path of the template in the spec.
    """
    available = [PROMPT, *(column for column in columns if column != PROMPT)]
    for name in placeholder_names(template):
        if name not in available and name.removesuffix(LETTERED) not in available:
            raise DataError(
                f"{spec_path}: {{{name}}} is no column; there are {', '.join(map(repr, available))} "
                "({{ and }} stand for braces)"
            )


def fill_template(template: str, prompt: str, cells: RowReader) -> str:
    """Fill the template with the row's columns.

    Raises DataError for a column that is missing, or neither text, number nor list of texts.
    """

    def text(name: str) -> str:
        if name == PROMPT:
            return prompt
        if name.endswith(LETTERED) and not cells.has(name):
            return _lettered(name.removesuffix(LETTERED), cells)
        return cells.template_text(name)

    return fill_placeholders(template, text)


def _lettered(column: str, cells: RowReader) -> str:
    """Return a list of texts as lettered lines. Raises RowError."""
    choices = cells.texts(column)
    if len(choices) > len(_LETTERS):
        raise cells.error(column, f"has {len(choices)} choices; there are letters for {len(_LETTERS)}")
    return "\n".join(f"{letter}) {choice}" for letter, choice in zip(_LETTERS, choices, strict=False))


def fill_last_user_message(
    template: str, messages: Sequence[Message], cells: RowReader, column: str
) -> list[Message]:
    """Replace the user's last message by the filled template.

    Raises DataError as `fill_template`, and where no user message exists.
    """
    last = last_user_index(messages, cells, column)
    message = messages[last]
    filled_message = {**message, "content": fill_template(template, message["content"], cells)}
    return [*messages[:last], filled_message, *messages[last + 1 :]]


def last_user_index(messages: Sequence[Message], cells: RowReader, column: str) -> int:
    """Return the index of the user's last message. Raises RowError where no user message exists."""
    last = next((i for i in reversed(range(len(messages))) if messages[i]["role"] == "user"), None)
    if last is None:
        raise cells.error(column, "the template replaces the user's last message, and there is none")
    return last
