"""Tokenisation of prompts and responses for a reward model whose vocabulary is not the policy's.

A model that kubealign has trained reads rows as in its training: `ExampleTokenizer`. Any other model reads
them as transformers does: a conversation is all that the model's chat template writes, including what
follows the end of the turn; a text prompt and its response are one text, ended by the end-of-sequence token.
Trailing padding tokens are left off, because transformers takes the score before them.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from transformers import PreTrainedTokenizerBase

from kubealign_services.data.rows.example import Example, Message
from kubealign_services.data.tokenization.chat_template import (
    ChatTemplate,
    ensure_chat_template,
    has_plain_template,
)
from kubealign_services.data.tokenization.example_tokenizer import ExampleTokenizer
from kubealign_services.data.tokenization.tokenizers import prefix_ids

#: Name of the scored response in an example.
RESPONSE = "response"


@dataclass(frozen=True)
class RewardTextFormat:
    """The way in which a reward model reads text.

    is_native: kubealign has trained the model, and its config states the pooling. padding: id that
    transformers skips at the end of a sequence; None: none.
    """

    is_native: bool
    padding: int | None = None


@dataclass(frozen=True)
class ScoredTokens:
    """Ids of a prompt and its response. response_mask: 1 at the ids of the response; for a model that is not
    native, None, since its score is that of the last token.
    """

    tokens: list[int]
    response_mask: list[int] | None = None


class RewardTextTokenizer:
    """Tokenises examples with a response for one reward model."""

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        text_format: RewardTextFormat,
        template_variables: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """Create a tokenizer of examples.

        Args:
            tokenizer: The reward model's; gets the plain chat template where it has none.
            template_variables: Variables of the chat template.
        """
        self._format = text_format
        # The plain template is kubealign's own, and ends as kubealign's rows do.
        ensure_chat_template(tokenizer)
        self._has_own_template = not has_plain_template(tokenizer)
        self._tokenizer = tokenizer
        self._template = ChatTemplate(tokenizer, template_variables)
        self._examples = ExampleTokenizer(tokenizer, template_variables)
        self._prefix_ids = prefix_ids(tokenizer)

    def tokenize(self, examples: Sequence[Example]) -> list[ScoredTokens]:
        """Tokenise examples of one kind (text, or messages), each with a response; see `scored_example`.

        Raises RowError where the chat template rejects the messages.
        """
        if not examples:
            return []
        is_text = isinstance(examples[0].prompt, str)
        if self._format.is_native or not (is_text or self._has_own_template):
            return [
                _join(item.prompt_tokens, item.responses[RESPONSE], item.response_mask)
                for item in self._examples.tokenize(examples)
            ]
        texts = [self._text(example) for example in examples]
        encoded = self._tokenizer(texts, add_special_tokens=False, return_attention_mask=False, verbose=False)
        around = (self._prefix_ids, [self._tokenizer.eos_token_id]) if is_text else ([], [])
        return [
            ScoredTokens(self._without_padding([*around[0], *ids, *around[1]]))
            for ids in encoded["input_ids"]
        ]

    def _text(self, example: Example) -> str:
        """Return the whole text of an example."""
        if isinstance(example.prompt, str):
            return example.prompt + example.responses[RESPONSE]
        return self._template.render(_conversation(example), example)

    def _without_padding(self, ids: list[int]) -> list[int]:
        end = len(ids)
        while end > 1 and ids[end - 1] == self._format.padding:
            end -= 1
        return ids[:end]


class SpecialTokenFilter:
    """Removes the special tokens of some tokenizers from text.

    The policy's have no meaning in another vocabulary. The reward model's would be read as such: a policy
    that writes an end of turn as text could begin a turn of the user.
    """

    def __init__(self, tokenizers: Iterable[PreTrainedTokenizerBase]) -> None:
        names = {name for tokenizer in tokenizers for name in special_tokens(tokenizer)}
        # Longer ones first: one may contain another.
        alternatives = "|".join(
            re.escape(name) for name in sorted(names, key=lambda name: (-len(name), name))
        )
        self._pattern = re.compile(alternatives or r"(?!)")

    def __call__(self, text: str) -> str:
        """Return the text without special tokens."""
        while (shorter := self._pattern.sub("", text)) != text:
            # The text around a removed token may form another one.
            text = shorter
        return text


def scored_example(example: Example, response: str, prompt_filter: SpecialTokenFilter) -> Example:
    """Return the example with this response in place of its own ones.

    Args:
        prompt_filter: Filter of a text prompt.
    """
    alone = replace(example, responses={}, answers={}, dialogue=None)
    if isinstance(example.prompt, str):
        return replace(alone, prompt=prompt_filter(example.prompt), responses={RESPONSE: response})
    return replace(alone, answers={RESPONSE: {"role": "assistant", "content": response}})


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> set[str]:
    """Return the special tokens of a tokenizer; <think> and the like are not special in their tokenizers."""
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()
    return {*tokenizer.all_special_tokens, *(token.content for token in added if token.special)} - {""}


def _conversation(example: Example) -> list[Message]:
    if example.dialogue is not None:
        return example.dialogue.messages[: example.dialogue.imitated[-1] + 1]
    assert not isinstance(example.prompt, str)
    return [*example.prompt, example.answers[RESPONSE]]


def _join(prompt: Sequence[int], response: Sequence[int], mask: Sequence[int] | None) -> ScoredTokens:
    scored = [1] * len(response) if mask is None else mask
    return ScoredTokens([*prompt, *response], [0] * len(prompt) + [*scored])
