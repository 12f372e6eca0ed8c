"""Spans of the assistant's turns in a conversation as the chat template renders it.

A template with {% generation %} marks them itself. With any other template, the conversation is rendered
up to each turn and through it: the additional text is the turn, provided that both renderings are prefixes
of the whole.
"""

import re
from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import render_jinja_template

from kubealign_services.data.errors import DataError
from kubealign_services.data.rows.example import Dialogue, Message
from kubealign_services.data.tokenization.chat_template import render_messages, template_errors

_GENERATION_MARKER = re.compile(r"\{%-?\s*generation\s*-?%\}")

#: Start and end offset in characters, end exclusive.
Span = tuple[int, int]


def assistant_spans(
    tokenizer: PreTrainedTokenizerBase, dialogue: Dialogue, number: int
) -> tuple[str, list[Span]]:
    """Return (rendered conversation, span of each imitated message with the end of its turn).

    Raises DataError for row `number` where the template rejects the messages, or the turns cannot be
    separated.
    """
    template = tokenizer.get_chat_template()
    if _GENERATION_MARKER.search(template):
        return _marked_spans(tokenizer, template, dialogue, number)
    text = render_messages(tokenizer, dialogue.messages, number)
    messages = dialogue.messages
    return text, [_span_by_prefix(tokenizer, messages, index, text, number) for index in dialogue.imitated]


def _marked_spans(
    tokenizer: PreTrainedTokenizerBase, template: str, dialogue: Dialogue, number: int
) -> tuple[str, list[Span]]:
    special: dict[str, Any] = tokenizer.special_tokens_map
    with template_errors(number):
        # Annotated as returning text; in fact returns texts and the spans of their marks.
        rendered: Any = render_jinja_template(
            [dialogue.messages], chat_template=template, return_assistant_tokens_mask=True, **special
        )
    (text,), (marks,) = rendered
    spans = [(first, last) for first, last in marks]
    assistant = [index for index, message in enumerate(dialogue.messages) if message["role"] == "assistant"]
    if len(spans) != len(assistant):
        raise DataError(
            f"row {number + 1}: the chat template marks {len(spans)} parts as the assistant's, which has "
            f"{len(assistant)} messages: they cannot be told apart; set turns: Last"
        )
    return text, [spans[assistant.index(index)] for index in dialogue.imitated]


def _span_by_prefix(
    tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], index: int, text: str, number: int
) -> Span:
    before = render_messages(tokenizer, messages[:index], number, opening=True)
    through = render_messages(tokenizer, messages[: index + 1], number)
    turn_text = through[len(before) :]
    end = len(before) + _end_of_turn(turn_text, str(messages[index]["content"]), str(tokenizer.eos_token))
    if not through.startswith(before) or not text.startswith(through[:end]):
        raise DataError(
            f"row {number + 1}: the chat template writes message {index + 1} in another way when others "
            "follow, so its turns cannot be told apart: set turns: Last, or give the tokenizer a template "
            "that marks them with {% generation %}"
        )
    return len(before), end


def _end_of_turn(own: str, content: str, end_of_sequence: str) -> int:
    """Return the length of the assistant's part of a rendered turn.

    Through the end-of-sequence token, else without the whitespace that separates it from the next turn.
    """
    at = own.rfind(end_of_sequence)
    if at >= 0:
        return at + len(end_of_sequence)
    stripped = content.strip()
    tail = own[own.rfind(stripped) + len(stripped) :] if stripped else own
    # A turn that ends with whitespace only keeps that whitespace as its end.
    return len(own.rstrip()) if tail.strip() else len(own)
