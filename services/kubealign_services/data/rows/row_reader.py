"""Typed access to the columns of one row; errors name the row, the column and its value."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from kubealign_services.data.errors import RowError
from kubealign_services.data.rows.example import Message
from kubealign_services.data.rows.messages import (
    InvalidMessage,
    describe_value,
    parse_message,
    without_nulls,
)


class RowReader:
    """The columns of row `number` (from 0).

    Every method raises RowError for a column that is missing or has another type.
    """

    def __init__(self, row: Mapping[str, Any], number: int) -> None:
        self._row = row
        self._number = number

    def value(self, column: str) -> Any:
        """Return the value of any type."""
        if column not in self._row:
            names = ", ".join(map(repr, self._row))
            raise RowError(self._number, f" has no column {column!r}; it has {names}")
        return self._row[column]

    def has(self, column: str) -> bool:
        """Return True if the row has the column."""
        return column in self._row

    def texts(self, column: str) -> list[str]:
        """Return a list of texts, at least one."""
        value = self._list(column)
        if not value or not all(isinstance(item, str) for item in value):
            raise self._cell_error(column, ", not a list of texts")
        return value

    def text(self, column: str) -> str:
        value = self.value(column)
        if not isinstance(value, str):
            raise self._cell_error(column, ", not text")
        return value

    def number(self, column: str) -> float:
        """Return a finite number."""
        value = self.value(column)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise self._cell_error(column, ", not a finite number")
        return float(value)

    def ratings(self, columns: Sequence[str]) -> list[float | None]:
        """Return finite numbers, None for an unknown one; at least one is known."""
        ratings = [None if self.value(column) is None else self.number(column) for column in columns]
        if all(rating is None for rating in ratings):
            raise RowError(self._number, f": {', '.join(map(repr, columns))} are null: one must be known")
        return ratings

    def joined_text(self, column: str, separator: str) -> str:
        """Return the text, or the texts of a list joined by the separator."""
        if isinstance(self.value(column), list):
            return separator.join(self.texts(column))
        return self.text(column)

    def step_labels(self, column: str) -> list[float | None]:
        """Return probabilities (true is 1, false is 0), None for an unknown one; at least one is known."""
        values = self._list(column)
        for index, value in enumerate(values):
            if value is not None and (not isinstance(value, int | float) or not 0 <= value <= 1):
                raise self.error(
                    column,
                    f"item {index + 1} is {describe_value(value)}; a label is true, false, null or a number "
                    "from 0 to 1",
                )
        if all(value is None for value in values):
            raise self.error(column, "no label of a step is known: remove the row")
        return [None if value is None else float(value) for value in values]

    def label(self, column: str) -> bool:
        """Return a boolean; 1 and 0 are accepted too."""
        value = self.value(column)
        if not isinstance(value, int | float) or value not in (0, 1):
            raise self._cell_error(column, ", not true or false (nor 1 or 0)")
        return bool(value)

    def template_text(self, column: str) -> str:
        """Return the value as template text: text as is, 4 rather than 4.0, true or false, one text of a list
        a line.
        """
        value = self.value(column)
        if isinstance(value, list) and value and all(isinstance(item, str) for item in value):
            return "\n".join(value)
        if isinstance(value, str):
            return value
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, int):
            return str(value)
        if isinstance(value, float) and math.isfinite(value):
            return str(int(value)) if value.is_integer() else repr(value)
        raise self._cell_error(column, ", not a text, number or list of texts to be put into the template")

    def messages(self, column: str, answered: bool) -> list[Message]:
        """Return a list of messages. Unless it must be answered, a text is one message of the user.

        Args:
            answered: The last message is the assistant's, with one before it; else it is a user's or a
                tool's.
        """
        value = self.value(column)
        if isinstance(value, str) and not answered:
            return [{"role": "user", "content": value}]
        if not isinstance(value, list) or not value:
            raise self._cell_error(column, ", not a list of messages")
        messages = [self._message(column, index, item) for index, item in enumerate(value)]
        last = messages[-1]["role"]
        if last not in (("assistant",) if answered else ("user", "tool")):
            expected = "the assistant's" if answered else "the user's or a tool's"
            raise self.error(column, f"the last message is the {last}'s; it must be {expected}")
        if answered and len(messages) == 1:
            raise self.error(column, "there is no message before the assistant's")
        return messages

    def tools(self, column: str) -> list[Any] | None:
        """Return a list of JSON schemas, also from JSON text; None where it is null or empty."""
        value = self.value(column)
        if isinstance(value, str):
            try:
                value = json.loads(value)
            except ValueError as error:
                raise self._cell_error(column, f", not JSON: {error}") from error
        if value is None or value == []:
            return None
        if not isinstance(value, list) or not all(isinstance(tool, Mapping) for tool in value):
            raise self._cell_error(column, ", not a list of tools, each a JSON schema")
        return [without_nulls(tool) for tool in value]

    def token_ids(self, column: str, vocabulary: frozenset[int]) -> list[int]:
        """Return a list of token ids, at least one, all in the vocabulary."""
        ids = self._integers(column)
        if not ids:
            raise self._cell_error(column, ": one token id at least is needed")
        if not vocabulary.issuperset(ids):
            index = next(index for index, token in enumerate(ids) if token not in vocabulary)
            raise self.error(
                column,
                f"item {index + 1} is {ids[index]}, which is no token of the policy's tokenizer "
                f"(its ids are {min(vocabulary)} to {max(vocabulary)}, {len(vocabulary)} in all)",
            )
        return ids

    def integers(self, column: str, count: int, owner: str) -> list[int]:
        """Return a list of `count` whole numbers, as many as the column `owner` has."""
        values = self._integers(column)
        self._check_count(column, len(values), count, owner)
        return values

    def bits(self, column: str, count: int, owner: str) -> list[int]:
        """Return a list of `count` values 0 or 1 (or booleans), as many as the column `owner` has."""
        values = self._list(column)
        self._check_count(column, len(values), count, owner)
        for index, value in enumerate(values):
            if not isinstance(value, int) or value not in (0, 1):
                raise self.error(
                    column, f"item {index + 1} is {describe_value(value)}, not 0 or 1 (nor false or true)"
                )
        return [int(value) for value in values]

    def length(self, column: str, maximum: int, owner: str) -> int:
        """Return a number of items of the list in the column `owner`, 1 to `maximum`."""
        value = self.value(column)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= maximum:
            raise self._cell_error(
                column,
                f", not a whole number from 1 to {maximum}: {owner!r} has {maximum + 1} items, and one at "
                "least must follow",
            )
        return value

    def error(self, column: str, message: str) -> RowError:
        """Return an error about a column."""
        return RowError(self._number, f": column {column!r}: {message}")

    def _list(self, column: str) -> list[Any]:
        value = self.value(column)
        if not isinstance(value, list):
            raise self._cell_error(column, ", not a list")
        return value

    def _integers(self, column: str) -> list[int]:
        values = self._list(column)
        # bool is a subclass of int, but no token id.
        if set(map(type, values)) - {int}:
            index = next(index for index, value in enumerate(values) if type(value) is not int)
            raise self.error(
                column, f"item {index + 1} is {describe_value(values[index])}, not a whole number"
            )
        return values

    def _check_count(self, column: str, count: int, expected: int, owner: str) -> None:
        if count != expected:
            raise self.error(
                column, f"has {count} items, and {owner!r} has {expected}: one for each is needed"
            )

    def _message(self, column: str, index: int, item: Any) -> Message:
        try:
            return parse_message(item)
        except InvalidMessage as error:
            raise RowError(self._number, f": column {column!r}, message {index + 1} {error}") from error

    def _cell_error(self, column: str, problem: str) -> RowError:
        value = describe_value(self._row[column])
        return RowError(self._number, f": column {column!r} holds {value}{problem}")
