"""Formats generated rows like the data's prompts, with default column names, so that another job can read
them without settings.
"""

from typing import Any

from kubealign.spec.data import Prompts
from kubealign_services.data.example import Message
from kubealign_services.data.fields import prompt_column, read
from kubealign_services.data.prepared import PreparedRow
from kubealign_services.driver.rounds.questions import conversation


class Form:
    """Formatter of rows that are generated from a job's prompts."""

    def __init__(self, data: Prompts) -> None:
        self._data = data
        chat = data.format.chat
        self._messages = None if chat is None else chat.messages

    @property
    def chat(self) -> bool:
        """True if prompts are messages."""
        return self._messages is not None

    def asked(self, row: PreparedRow) -> str:
        """Return the prompt as text for a question about its responses."""
        return row.prompt_text if self._messages is None else conversation(self._prompt(row))

    def demonstration(self, row: PreparedRow, response: str) -> dict[str, Any]:
        """Return prompt and response, or messages that end with the response, and the row's other columns."""
        if self._messages is None:
            return self._others(row) | {"prompt": row.prompt_text, "response": response}
        return self._others(row) | {"messages": [*self._prompt(row), _answer(response)]}

    def preference(self, row: PreparedRow, chosen: str, rejected: str) -> dict[str, Any]:
        """Return prompt, chosen and rejected, or chosen and rejected messages, and the row's other columns.
        """
        if self._messages is None:
            texts = {"prompt": row.prompt_text, "chosen": chosen, "rejected": rejected}
            return self._others(row) | texts
        prompt = self._prompt(row)
        sides = {"chosen": [*prompt, _answer(chosen)], "rejected": [*prompt, _answer(rejected)]}
        return self._others(row) | sides

    def _prompt(self, row: PreparedRow) -> list[Message]:
        prompt = read(self._data, row.columns, row.row).prompt
        assert not isinstance(prompt, str)
        return prompt

    def _others(self, row: PreparedRow) -> dict[str, Any]:
        prompt_columns = {self._messages, prompt_column(self._data)}
        return {name: value for name, value in row.columns.items() if name not in prompt_columns}


def _answer(text: str) -> Message:
    return {"role": "assistant", "content": text}
