"""Examples to tokens.

- A text prompt is tokenised as the tokenizer does by itself, its beginning-of-sequence token included; what
  it would put behind the text is left off, because a response follows.
- Messages go through the chat template with the opening of the assistant's turn, and nothing is added to
  what it writes.
- A response is tokenised by itself and ends with the end-of-sequence token. Prompt and response ids are put
  together, never their texts: at sampling the policy continues exactly these prompt ids, so at training it
  must see the same boundary.
- So it is with the turns of a conversation that are imitated: the text is cut where each of them begins and
  ends, and the parts are tokenised by themselves.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from transformers import PreTrainedTokenizerBase

from kubealign_services.data.chat import prompt_text, template_texts
from kubealign_services.data.errors import DataError
from kubealign_services.data.example import Dialogue, Example
from kubealign_services.data.tokenizers import begins_with
from kubealign_services.data.turn_spans import own_spans


@dataclass(frozen=True)
class Rendered:
    """An example as tokens. responses: name -> ids, end-of-sequence included. prompt_text: what the
    prompt's ids are of (for messages: as the template writes them). response_mask: of a dialogue's one
    response, 1 at the imitated turns' ids."""

    example: Example
    prompt_text: str
    prompt_tokens: list[int]
    responses: dict[str, list[int]]
    response_mask: list[int] | None = None


class Renderer:
    """Renders many examples at a time, as a tokenizer is quickest."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._beginning = begins_with(tokenizer)

    def render(self, examples: Sequence[Example]) -> list[Rendered]:
        """In the examples' order. Raises DataError for a prompt without a token."""
        texts = [self._texts(example) for example in examples]
        encoded = iter(self._encode([text for parts in texts for text in parts]))
        return [
            self._rendered(example, parts, [next(encoded) for _ in parts])
            for example, parts in zip(examples, texts, strict=True)
        ]

    def _texts(self, example: Example) -> list[str]:
        """The prompt and what follows it, each to be tokenised by itself."""
        if example.dialogue is not None:
            return self._turns(example.dialogue, example.number)
        if isinstance(example.prompt, str):
            return [example.prompt, *example.responses.values()]
        opened = prompt_text(self._tokenizer, example.prompt, example.number)
        return [opened, *example.responses.values()]

    def _turns(self, dialogue: Dialogue, number: int) -> list[str]:
        """In turns: what is read, what is imitated. What follows the last imitated turn is left off."""
        text, spans = own_spans(self._tokenizer, dialogue, number)
        ends = [0, *(place for span in spans for place in span)]
        return [text[first:last] for first, last in pairwise(ends)]

    def _rendered(self, example: Example, texts: Sequence[str], ids: Sequence[list[int]]) -> Rendered:
        begins = self._beginning if isinstance(example.prompt, str) else []
        prompt = begins + ids[0]
        if not prompt:
            raise DataError(
                f"row {example.number + 1}: the prompt {texts[0]!r} has no tokens; one at least is needed"
            )
        end = self._tokenizer.eos_token_id
        if example.dialogue is None:
            responses = {name: [*part, end] for name, part in zip(example.responses, ids[1:], strict=True)}
            return Rendered(example, texts[0], prompt, responses)
        response = [token for part in ids[1:] for token in part]
        mask = [1 - place % 2 for place, part in enumerate(ids[1:]) for _ in part]
        # Sampling ends at this token, whatever the template ends a turn with.
        if response[-1:] != [end]:
            response, mask = [*response, end], [*mask, 1]
        return Rendered(example, texts[0], prompt, {"response": response}, mask)

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        if not texts:
            return []
        encoded = self._tokenizer(
            list(texts), add_special_tokens=False, return_attention_mask=False, verbose=False
        )
        return [list(ids) for ids in encoded["input_ids"]]


def training_texts(example: Example) -> list[str]:
    """All text of an example, for a tokenizer to be trained on."""
    if example.dialogue is not None:
        return template_texts(example.dialogue.messages)
    if isinstance(example.prompt, str):
        return [example.prompt, *example.responses.values()]
    answers = [{"role": "assistant", "content": text} for text in example.responses.values()]
    # The opening of an answer is written for every prompt, whether or not an answer follows.
    return template_texts([*example.prompt, *(answers or [{"role": "assistant", "content": ""}])])
