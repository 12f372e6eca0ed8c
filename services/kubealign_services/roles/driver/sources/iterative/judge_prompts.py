"""Judge prompts: the template about a response, filled in and rendered like the data's prompts."""

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from kubealign.spec.placeholders import fill_placeholders
from kubealign.spec.sections.data import PromptMessages
from kubealign_services.data.prepared import PreparedRow
from kubealign_services.data.rows.example import Example
from kubealign_services.data.rows.messages import message_text
from kubealign_services.data.tokenization.example_tokenizer import ExampleTokenizer


class JudgePrompts:
    """Renderer of judge prompts. Text prompts give text; chat prompts give a single user message.

    Args:
        chat: Format of the prompts; None: prompts are text.
    """

    def __init__(
        self, template: str, tokenizer: PreTrainedTokenizerBase, chat: PromptMessages | None
    ) -> None:
        self._template = template
        self._renderer = ExampleTokenizer(tokenizer, {} if chat is None else chat.chat_template_kwargs)
        self._messages = None if chat is None else chat.messages

    def render(self, asked: Sequence[tuple[PreparedRow, str]]) -> list[PreparedRow]:
        """Return a judge prompt for each (row, response), as rows to sample from."""
        texts = [
            fill_placeholders(
                self._template, {"prompt": self._prompt_text(row), "response": response}.__getitem__
            )
            for row, response in asked
        ]
        examples = [Example(number, self._to_prompt(text)) for number, text in enumerate(texts)]
        return [
            PreparedRow(row=row.row, prompt_tokens=rendered.prompt_tokens, prompt_text=rendered.prompt_text)
            for (row, _), rendered in zip(asked, self._renderer.tokenize(examples), strict=True)
        ]

    def _to_prompt(self, text: str) -> str | list[dict[str, Any]]:
        """Return the text as a prompt of the data's kind."""
        return text if self._messages is None else [{"role": "user", "content": text}]

    def _prompt_text(self, row: PreparedRow) -> str:
        """Return the row's prompt as text for the template."""
        if self._messages is None:
            return row.prompt_text
        return format_conversation(row.columns[self._messages])


def format_conversation(messages: Sequence[Mapping[str, Any]]) -> str:
    """Return messages as text: a single message's text, or each message with its role."""
    if len(messages) == 1:
        return message_text(messages[0])
    return "\n\n".join(
        f"{str(message['role']).capitalize()}: {message_text(message)}" for message in messages
    )
