"""Renders the job's own prompts like the data's prompts."""

from collections.abc import Mapping, Sequence

from transformers import PreTrainedTokenizerBase

from kubealign.spec.placeholders import fill_placeholders
from kubealign_services.data.rows.example import Example
from kubealign_services.data.tokenization.example_tokenizer import ExampleTokenizer
from kubealign_services.roles.driver.errors import UnrecoverableError


class PromptRenderer:
    """Renderer of filled-in templates: as text if the data's prompts are text, else as a single user message.

    Args:
        context: Most tokens of prompt and response together; None: unlimited.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, chat: bool, context: int | None) -> None:
        self._tokenizer = tokenizer
        self._renderer = ExampleTokenizer(tokenizer)
        self._chat = chat
        self._context = context

    def render(
        self, template: str, values: Sequence[Mapping[str, str]], response: int
    ) -> list[list[int] | None]:
        """Return the template's tokens with each of the values; None if a response of `response` tokens would
        not fit.
        """
        texts = [fill_placeholders(template, item.__getitem__) for item in values]
        examples = [
            Example(number, [{"role": "user", "content": text}] if self._chat else text)
            for number, text in enumerate(texts)
        ]
        rendered = [item.prompt_tokens for item in self._renderer.tokenize(examples)]
        if self._context is None:
            return list(rendered)
        return [tokens if len(tokens) + response <= self._context else None for tokens in rendered]

    def encode_answer(self, text: str) -> tuple[int, ...]:
        """Return the tokens of a given answer. Raises UnrecoverableError if it has none."""
        tokens = tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        if not tokens:
            raise UnrecoverableError(f"the answer {text!r} has no tokens: choose another")
        return tokens
