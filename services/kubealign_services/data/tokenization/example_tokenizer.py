"""Tokenisation of examples.

- A text prompt is tokenised with the tokenizer's own beginning-of-sequence token; tokens that the
  tokenizer would append after the text are left off, because a response follows.
- A response to a text prompt is tokenised separately and ends with the end-of-sequence token.
- A conversation is rendered whole by the chat template, and gives the template's tokens. The prompt is the
  text with the opening of the assistant's turn, as it is sampled from, and the response ends at the
  template's own end of turn. Where a token would belong to both, they are tokenised separately: at sampling
  the policy continues exactly these prompt ids, so training must see the same boundary.
- Imitated turns of a conversation follow the same rule.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import Any

from transformers import PreTrainedTokenizerBase

from kubealign_services.data.errors import RowError
from kubealign_services.data.rows.example import Dialogue, Example, Message
from kubealign_services.data.tokenization.chat_template import ChatTemplate, plain_template_texts
from kubealign_services.data.tokenization.end_of_turn import end_of_turn_id, without_unknown
from kubealign_services.data.tokenization.segment_encoding import encode_segments
from kubealign_services.data.tokenization.tokenizers import prefix_ids
from kubealign_services.data.tokenization.turn_spans import TurnFinder


@dataclass(frozen=True)
class TokenizedExample:
    """A tokenised example.

    responses: name -> ids, with the token that ends it. prompt_text: text of the prompt's ids (for messages:
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

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, template_variables: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        """Create a tokenizer of examples.

        Args:
            template_variables: Variables of the chat template.
        """
        self._tokenizer = tokenizer
        self._prefix_ids = prefix_ids(tokenizer)
        self._template = ChatTemplate(tokenizer, template_variables)
        self._turns = TurnFinder(self._template)
        # Ids that end a turn of a template; any other last token is followed by the end-of-sequence token.
        self._ends = without_unknown(tokenizer, [*tokenizer.all_special_ids, end_of_turn_id(tokenizer)])

    def is_end(self, token: int) -> bool:
        """Return True if the token can end a response."""
        return token in self._ends

    def tokenize(self, examples: Sequence[Example]) -> list[TokenizedExample]:
        """Tokenise examples, in their order. Raises DataError for a prompt without a token."""
        texts = [self._sequences(example) for example in examples]
        encoded = iter(encode_segments(self._tokenizer, [item for sequences in texts for item in sequences]))
        return [
            self._assemble(example, sequences[0][0], [next(encoded) for _ in sequences])
            for example, sequences in zip(examples, texts, strict=True)
        ]

    def _sequences(self, example: Example) -> list[list[str]]:
        """Return the sequences of an example, each cut into segments.

        A text prompt and its responses are sequences of one segment. A conversation is the segments prompt
        and answer, for each answer, or for a dialogue alternating context and imitated turns.
        """
        if example.dialogue is not None:
            return [self._dialogue_segments(example.dialogue, example)]
        if isinstance(example.prompt, str):
            return [[text] for text in (example.prompt, *example.responses.values())]
        if not example.answers:
            return [[self._template.render(example.prompt, example, opening=True)]]
        return self._answer_segments(example.prompt, example)

    def _dialogue_segments(self, dialogue: Dialogue, example: Example) -> list[str]:
        """Return alternating context and imitated texts. Text after the last imitated turn is left off."""
        text, spans = self._turns.spans(dialogue, example)
        ends = [0, *(position for span in spans for position in span)]
        return [text[first:last] for first, last in pairwise(ends)]

    def _answer_segments(self, prompt: Sequence[Message], example: Example) -> list[list[str]]:
        """Return the segments prompt and answer for each answer, with the same prompt."""
        conversations = [
            self._turns.last_span([*prompt, answer], example) for answer in example.answers.values()
        ]
        start = min(first for _, (first, _) in conversations)
        if len({text[:start] for text, _ in conversations}) > 1:
            raise RowError(
                example.number,
                ": the chat template renders the prompt differently before the "
                "two answers: a preference is between two answers to one prompt",
            )
        return [[text[:start], text[start:end]] for text, (_, end) in conversations]

    def _assemble(
        self, example: Example, text: str, sequences: Sequence[Sequence[list[int]]]
    ) -> TokenizedExample:
        first = sequences[0]
        prompt = (self._prefix_ids if isinstance(example.prompt, str) else []) + first[0]
        if not prompt:
            raise RowError(example.number, f": the prompt {text!r} has no tokens; one at least is needed")
        if example.dialogue is not None:
            response = self._ended([token for ids in first[1:] for token in ids])
            mask = [1 - index % 2 for index, ids in enumerate(first[1:]) for _ in ids]
            mask += [1] * (len(response) - len(mask))
            return TokenizedExample(example, text, prompt, {"response": response}, mask)
        if isinstance(example.prompt, str):
            end = [self._tokenizer.eos_token_id]
            texts = zip(example.responses, sequences[1:], strict=True)
            return TokenizedExample(example, text, prompt, {name: ids + end for name, (ids,) in texts})
        # Without answers, the only sequence is the prompt.
        answers = zip(example.answers, sequences if example.answers else (), strict=True)
        return TokenizedExample(
            example, text, prompt, {name: self._ended(answer) for name, (_, answer) in answers}
        )

    def _ended(self, ids: list[int]) -> list[int]:
        """Return the ids with the end-of-sequence token where the template ends a turn with text only."""
        return ids if ids[-1:] and ids[-1] in self._ends else [*ids, self._tokenizer.eos_token_id]


def training_texts(example: Example) -> list[str]:
    """Return all text of an example, for a tokenizer to be trained on."""
    if example.dialogue is not None:
        return plain_template_texts(example.dialogue.messages)
    if isinstance(example.prompt, str):
        return [example.prompt, *example.responses.values()]
    # The opening of an answer is rendered for every prompt, with or without an answer.
    answers = [*example.answers.values()] or [{"role": "assistant", "content": ""}]
    return plain_template_texts([*example.prompt, *answers])
