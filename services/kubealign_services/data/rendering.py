"""Examples to tokens.

- A text prompt is tokenised as the tokenizer does by itself, its beginning-of-sequence token included; what
  it would put behind the text is left off, because a response follows.
- Messages go through the chat template with the opening of the assistant's turn, and nothing is added to
  what it writes.
- A response is tokenised by itself and ends with the end-of-sequence token. Prompt and response ids are put
  together, never their texts: at sampling the policy continues exactly these prompt ids, so at training it
  must see the same boundary.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from kubealign_services.data.chat import prompt_text, template_texts
from kubealign_services.data.errors import DataError
from kubealign_services.data.fields import Example
from kubealign_services.data.tokenizers import begins_with


@dataclass(frozen=True)
class Rendered:
    """An example as tokens. responses: name -> ids, end-of-sequence included. prompt_text: what the
    prompt's ids are of (for messages: as the template writes them)."""

    example: Example
    prompt_text: str
    prompt_tokens: list[int]
    responses: dict[str, list[int]]


class Renderer:
    """Renders many examples at a time, as a tokenizer is quickest."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._beginning = begins_with(tokenizer)

    def render(self, examples: Sequence[Example]) -> list[Rendered]:
        """In the examples' order. Raises DataError for a prompt without a token."""
        texts = [
            example.prompt
            if isinstance(example.prompt, str)
            else prompt_text(self._tokenizer, example.prompt, example.number)
            for example in examples
        ]
        prompts = self._encode(texts)
        responses = iter(self._encode([text for example in examples for text in example.responses.values()]))
        rendered: list[Rendered] = []
        for example, text, tokens in zip(examples, texts, prompts, strict=True):
            prompt = self._beginning + tokens if isinstance(example.prompt, str) else tokens
            if not prompt:
                raise DataError(
                    f"row {example.number + 1}: the prompt {text!r} has no tokens; one at least is needed"
                )
            ends = {name: [*next(responses), self._tokenizer.eos_token_id] for name in example.responses}
            rendered.append(Rendered(example, text, prompt, ends))
        return rendered

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        if not texts:
            return []
        encoded = self._tokenizer(
            list(texts), add_special_tokens=False, return_attention_mask=False, verbose=False
        )
        return [list(ids) for ids in encoded["input_ids"]]


def training_texts(example: Example) -> list[str]:
    """All text of an example, for a tokenizer to be trained on."""
    if isinstance(example.prompt, str):
        return [example.prompt, *example.responses.values()]
    answers = [{"role": "assistant", "content": text} for text in example.responses.values()]
    # The opening of an answer is written for every prompt, whether or not an answer follows.
    return template_texts([*example.prompt, *(answers or [{"role": "assistant", "content": ""}])])
