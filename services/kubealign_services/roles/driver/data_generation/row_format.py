"""Formats generated rows like the data's prompts, with default column names, so that another job can read
them without settings.
"""

from typing import Any

from kubealign.spec.sections.data import PromptDataset
from kubealign_services.data.prepared import PreparedRow
from kubealign_services.data.rows.example import Message
from kubealign_services.data.rows.field_mapping import prompt_column, read_example
from kubealign_services.roles.driver.sources.iterative.judge_prompts import format_conversation


class RowFormatter:
    """Formatter of rows that are generated from a job's prompts."""

    def __init__(self, data: PromptDataset) -> None:
        self._data = data
        self.chat = data.format.chat
        self._messages = None if self.chat is None else self.chat.messages

    def show_prompt(self, row: PreparedRow) -> str:
        """Return the prompt as text for a question about its responses."""
        return row.prompt_text if self._messages is None else format_conversation(self._prompt(row))

    def demonstration(self, row: PreparedRow, response: str) -> dict[str, Any]:
        """Return prompt and response, or messages ending with the response, and the other columns."""
        if self._messages is None:
            return self._other_columns(row) | {"prompt": row.prompt_text, "response": response}
        return self._other_columns(row) | {"messages": [*self._prompt(row), _assistant_message(response)]}

    def preference(self, row: PreparedRow, chosen: str, rejected: str) -> dict[str, Any]:
        """Return prompt, chosen and rejected, or chosen and rejected messages, and the other columns."""
        if self._messages is None:
            texts = {"prompt": row.prompt_text, "chosen": chosen, "rejected": rejected}
            return self._other_columns(row) | texts
        prompt = self._prompt(row)
        sides = {
            "chosen": [*prompt, _assistant_message(chosen)],
            "rejected": [*prompt, _assistant_message(rejected)],
        }
        return self._other_columns(row) | sides

    def _prompt(self, row: PreparedRow) -> list[Message]:
        prompt = read_example(self._data, row.columns, row.row).prompt
        assert not isinstance(prompt, str)
        return prompt

    def _other_columns(self, row: PreparedRow) -> dict[str, Any]:
        prompt_columns = {self._messages, prompt_column(self._data)}
        return {name: value for name, value in row.columns.items() if name not in prompt_columns}


def _assistant_message(text: str) -> Message:
    return {"role": "assistant", "content": text}
