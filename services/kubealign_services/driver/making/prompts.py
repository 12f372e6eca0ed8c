"""Prompts of the job's own: filled in, and put to the policy as the data's prompts are."""

from collections.abc import Mapping, Sequence

from transformers import PreTrainedTokenizerBase

from kubealign.spec.placeholders import fill
from kubealign_services.data.example import Example
from kubealign_services.data.rendering import Renderer
from kubealign_services.driver.failures import JobFailed


class Prompts:
    """Where the data's prompts are text, text; where they are messages, the user's one message.

    context: tokens that prompt and response may have together; None: any number.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, chat: bool, context: int | None) -> None:
        self._tokenizer = tokenizer
        self._renderer = Renderer(tokenizer)
        self._chat = chat
        self._context = context

    def tokens(
        self, template: str, values: Sequence[Mapping[str, str]], response: int
    ) -> list[list[int] | None]:
        """The template's tokens with each of the values; None where they are too many for a response of so
        many tokens to follow."""
        texts = [fill(template, each.__getitem__) for each in values]
        examples = [
            Example(number, [{"role": "user", "content": text}] if self._chat else text)
            for number, text in enumerate(texts)
        ]
        rendered = [each.prompt_tokens for each in self._renderer.render(examples)]
        if self._context is None:
            return list(rendered)
        return [tokens if len(tokens) + response <= self._context else None for tokens in rendered]

    def answer(self, text: str) -> tuple[int, ...]:
        """The tokens of a given answer. Raises JobFailed where there are none."""
        tokens = tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"])
        if not tokens:
            raise JobFailed(f"the answer {text!r} has no tokens: choose another")
        return tokens
