"""Questions about responses, as the policy is asked them: filled in, and put as the data's prompts are."""

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from kubealign.spec.placeholders import fill
from kubealign_services.data.example import Example
from kubealign_services.data.prepared import PreparedRow
from kubealign_services.data.rendering import Renderer


class Questions:
    """Prompts that are text make questions that are text; prompts that are messages make a question that is
    the user's one message.

    messages: the column that holds a prompt's messages; None: prompts are text."""

    def __init__(self, template: str, tokenizer: PreTrainedTokenizerBase, messages: str | None) -> None:
        self._template = template
        self._renderer = Renderer(tokenizer)
        self._messages = messages

    def ask(self, asked: Sequence[tuple[PreparedRow, str]]) -> list[PreparedRow]:
        """A question about each response to its row's prompt, as rows to be sampled from."""
        texts = [
            fill(self._template, {"prompt": self._shown(row), "response": response}.__getitem__)
            for row, response in asked
        ]
        examples = [Example(number, self._put(text)) for number, text in enumerate(texts)]
        return [
            PreparedRow(row=row.row, prompt_tokens=rendered.prompt_tokens, prompt_text=rendered.prompt_text)
            for (row, _), rendered in zip(asked, self._renderer.render(examples), strict=True)
        ]

    def _put(self, text: str) -> str | list[dict[str, Any]]:
        return text if self._messages is None else [{"role": "user", "content": text}]

    def _shown(self, row: PreparedRow) -> str:
        if self._messages is None:
            return row.prompt_text
        return conversation(row.columns[self._messages])


def conversation(messages: Sequence[Mapping[str, Any]]) -> str:
    """What a question shows of a prompt's messages: a single one's content, or each with who said it."""
    if len(messages) == 1:
        return str(messages[0]["content"])
    return "\n\n".join(f"{str(message['role']).capitalize()}: {message['content']}" for message in messages)
