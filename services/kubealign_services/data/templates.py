"""Prompts with a row's columns in them."""

from collections.abc import Iterable, Sequence

from kubealign.spec.placeholders import fill, names
from kubealign_services.data.cells import Cells
from kubealign_services.data.errors import DataError
from kubealign_services.data.example import Message

#: Stands for the prompt that the row has, whatever its column is called.
PROMPT = "prompt"


def check_columns(template: str, columns: Iterable[str], place: str) -> None:
    """Raise DataError unless the rows have every column that the template names. place: its path in the
    spec."""
    there = [PROMPT, *(column for column in columns if column != PROMPT)]
    for name in names(template):
        if name not in there:
            raise DataError(
                f"{place}: {{{name}}} is no column; there are {', '.join(map(repr, there))} "
                "({{ and }} stand for braces)"
            )


def filled(template: str, prompt: str, cells: Cells) -> str:
    """The template with the row's columns. Raises DataError for a column that is missing, or neither text
    nor number."""
    return fill(template, lambda name: prompt if name == PROMPT else cells.plain(name))


def with_user_filled(template: str, messages: Sequence[Message], cells: Cells, column: str) -> list[Message]:
    """The messages, the last one of the user's written by the template. Raises DataError as `filled`, and
    where the user says nothing."""
    last = next((i for i in reversed(range(len(messages))) if messages[i]["role"] == "user"), None)
    if last is None:
        raise cells.error(column, "the template stands for the user's last message, and there is none")
    asked = messages[last]
    written = {**asked, "content": filled(template, asked["content"], cells)}
    return [*messages[:last], written, *messages[last + 1 :]]
