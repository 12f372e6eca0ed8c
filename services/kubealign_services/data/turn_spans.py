"""Where the assistant's own words lie in a conversation as the chat template writes it.

A template that marks them with {% generation %} says so itself. With any other, the conversation is written
up to each turn and through it: what the second has more is the turn, provided that both are how the whole
begins.
"""

import re
from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import render_jinja_template

from kubealign_services.data.chat import refused, written
from kubealign_services.data.errors import DataError
from kubealign_services.data.example import Dialogue, Message

_MARKS = re.compile(r"\{%-?\s*generation\s*-?%\}")

#: First character and the one behind the last.
Span = tuple[int, int]


def own_spans(tokenizer: PreTrainedTokenizerBase, dialogue: Dialogue, number: int) -> tuple[str, list[Span]]:
    """(the whole conversation, the span of each imitated message with the end of its turn). Raises DataError
    for row `number` where the template refuses the messages, or its turns cannot be told apart."""
    template = tokenizer.get_chat_template()
    if _MARKS.search(template):
        return _marked(tokenizer, template, dialogue, number)
    text = written(tokenizer, dialogue.messages, number)
    messages = dialogue.messages
    return text, [_by_prefix(tokenizer, messages, index, text, number) for index in dialogue.imitated]


def _marked(
    tokenizer: PreTrainedTokenizerBase, template: str, dialogue: Dialogue, number: int
) -> tuple[str, list[Span]]:
    special: dict[str, Any] = tokenizer.special_tokens_map
    with refused(number):
        # Declared to return text; it returns texts and, for each, the places of its marks.
        rendered: Any = render_jinja_template(
            [dialogue.messages], chat_template=template, return_assistant_tokens_mask=True, **special
        )
    (text,), (marks,) = rendered
    spans = [(first, last) for first, last in marks]
    own = [index for index, message in enumerate(dialogue.messages) if message["role"] == "assistant"]
    if len(spans) != len(own):
        raise DataError(
            f"row {number + 1}: the chat template marks {len(spans)} parts as the assistant's, which has "
            f"{len(own)} messages: they cannot be told apart; set turns: Last"
        )
    return text, [spans[own.index(index)] for index in dialogue.imitated]


def _by_prefix(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], index: int, text: str, number: int
) -> Span:
    before = written(tokenizer, messages[:index], number, opening=True)
    through = written(tokenizer, messages[: index + 1], number)
    own = through[len(before) :]
    end = len(before) + _end_of_turn(own, str(messages[index]["content"]), str(tokenizer.eos_token))
    if not through.startswith(before) or not text.startswith(through[:end]):
        raise DataError(
            f"row {number + 1}: the chat template writes message {index + 1} in another way when others "
            "follow, so its turns cannot be told apart: set turns: Last, or give the tokenizer a template "
            "that marks them with {% generation %}"
        )
    return len(before), end


def _end_of_turn(own: str, content: str, end_of_sequence: str) -> int:
    """How much of what was written for a turn is the assistant's: through its end-of-sequence token, else
    without the blanks that separate it from the next."""
    at = own.rfind(end_of_sequence)
    if at >= 0:
        return at + len(end_of_sequence)
    said = content.strip()
    tail = own[own.rfind(said) + len(said) :] if said else own
    # Where blanks are all that ends a turn, they are its end.
    return len(own.rstrip()) if tail.strip() else len(own)
