"""Tokenisation of examples.

- A text prompt is tokenised with the tokenizer's own beginning-of-sequence token; tokens that the
  tokenizer would
  append after the text are left off, because a response follows.
- Messages are rendered by the chat template with the opening of the assistant's turn; no further tokens
  are added.
- A response is tokenised separately and ends with the end-of-sequence token. Prompt and response ids are
  concatenated, never their texts: at sampling the policy continues exactly these prompt ids, so training
  must see
  the same boundary.
- Imitated turns of a conversation follow the same rule: the text is cut at their boundaries, and the parts
  are
  tokenised separately.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from transformers import PreTrainedTokenizerBase

from kubealign_services.data.errors import DataError
from kubealign_services.data.rows.example import Dialogue, Example
from kubealign_services.data.tokenization.chat_template import plain_template_texts, render_prompt
from kubealign_services.data.tokenization.tokenizers import prefix_ids
from kubealign_services.data.tokenization.turn_spans import assistant_spans


@dataclass(frozen=True)
class TokenizedExample:
    """A tokenised example.

    responses: name -> ids, end-of-sequence included. prompt_text: text of the prompt's ids (for messages:
    as rendered by the template). response_mask: for a dialogue's single response, 1 at the ids of imitated
    turns.
    """

    example: Example
    prompt_text: str
    prompt_tokens: list[int]
    responses: dict[str, list[int]]
    response_mask: list[int] | None = None


class ExampleTokenizer:
    """Tokenises examples in batches, which is fastest."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._prefix_ids = prefix_ids(tokenizer)

    def tokenize(self, examples: Sequence[Example]) -> list[TokenizedExample]:
        """Tokenise examples, in their order. Raises DataError for a prompt without a token."""
        texts = [self._texts(example) for example in examples]
        encoded = iter(self._encode([text for parts in texts for text in parts]))
        return [
            self._assemble(example, parts, [next(encoded) for _ in parts])
            for example, parts in zip(examples, texts, strict=True)
        ]

    def _texts(self, example: Example) -> list[str]:
        """Return the prompt and the responses, each to be tokenised separately."""
        if example.dialogue is not None:
            return self._turn_texts(example.dialogue, example.number)
        if isinstance(example.prompt, str):
            return [example.prompt, *example.responses.values()]
        rendered = render_prompt(self._tokenizer, example.prompt, example.number)
        return [rendered, *example.responses.values()]

    def _turn_texts(self, dialogue: Dialogue, number: int) -> list[str]:
        """Return alternating context and imitated texts. Text after the last imitated turn is left off."""
        text, spans = assistant_spans(self._tokenizer, dialogue, number)
        ends = [0, *(position for span in spans for position in span)]
        return [text[first:last] for first, last in pairwise(ends)]

    def _assemble(self, example: Example, texts: Sequence[str], ids: Sequence[list[int]]) -> TokenizedExample:
        prefix = self._prefix_ids if isinstance(example.prompt, str) else []
        prompt = prefix + ids[0]
        if not prompt:
            raise DataError(
                f"row {example.number + 1}: the prompt {texts[0]!r} has no tokens; one at least is needed"
            )
        end = self._tokenizer.eos_token_id
        if example.dialogue is None:
            responses = {name: [*part, end] for name, part in zip(example.responses, ids[1:], strict=True)}
            return TokenizedExample(example, texts[0], prompt, responses)
        response = [token for part in ids[1:] for token in part]
        mask = [1 - index % 2 for index, part in enumerate(ids[1:]) for _ in part]
        # Sampling stops at this token, even if the template ends a turn differently.
        if response[-1:] != [end]:
            response, mask = [*response, end], [*mask, 1]
        return TokenizedExample(example, texts[0], prompt, {"response": response}, mask)

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        if not texts:
            return []
        encoded = self._tokenizer(
            list(texts), add_special_tokens=False, return_attention_mask=False, verbose=False
        )
        return [list(ids) for ids in encoded["input_ids"]]


def training_texts(example: Example) -> list[str]:
    """Return all text of an example, for a tokenizer to be trained on."""
    if example.dialogue is not None:
        return plain_template_texts(example.dialogue.messages)
    if isinstance(example.prompt, str):
        return [example.prompt, *example.responses.values()]
    answers = [{"role": "assistant", "content": text} for text in example.responses.values()]
    # The opening of an answer is rendered for every prompt, with or without an answer.
    return plain_template_texts([*example.prompt, *(answers or [{"role": "assistant", "content": ""}])])
