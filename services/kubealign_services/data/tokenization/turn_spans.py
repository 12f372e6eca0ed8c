"""Spans of the assistant's turns in a conversation as the chat template renders it.

A template with {% generation %} marks them itself. With any other template, the conversation is rendered
up to each turn and through it: the additional text is the turn. Either way the rendering through a turn
must be a prefix of the whole: a turn is imitated as it would be sampled.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from transformers.utils.chat_template_utils import render_jinja_template

from kubealign_services.data.errors import DataError, RowError
from kubealign_services.data.rows.example import Dialogue, Example, Message
from kubealign_services.data.tokenization.chat_template import ChatTemplate, template_errors
from kubealign_services.data.tokenization.end_of_turn import end_of_turn_id

_GENERATION_MARKER = re.compile(r"\{%-?\s*generation\s*-?%\}")

#: Start and end offset in characters, end exclusive.
Span = tuple[int, int]


@dataclass(frozen=True)
class TurnFinder:
    """Finds the assistant's turns in rendered conversations. A turn includes the token that ends it."""

    template: ChatTemplate

    def spans(self, dialogue: Dialogue, example: Example) -> tuple[str, list[Span]]:
        """Return (rendered conversation, span of each imitated message).

        Raises DataError for the example's row where the template rejects the messages, or the turns cannot
        be separated.
        """
        text, marked = self._render(dialogue.messages, example)
        if marked is None:
            return text, [
                self._span_by_prefix(dialogue.messages, index, text, example) for index in dialogue.imitated
            ]
        for index in dialogue.imitated:
            _, end = marked[index]
            if not self.template.render(dialogue.messages[: index + 1], example).startswith(text[:end]):
                raise _rewritten(index, example)
        return text, [marked[index] for index in dialogue.imitated]

    def last_span(self, messages: Sequence[Message], example: Example) -> tuple[str, Span]:
        """Return (rendered conversation, span of its last message).

        Raises DataError as `spans`.
        """
        text, marked = self._render(messages, example)
        if marked is not None:
            return text, marked[len(messages) - 1]
        before = self.template.render(messages[:-1], example, opening=True)
        if text.startswith(before):
            start = len(before)
        else:
            start = self._shared_opening(messages, before, text, example)
        return text, (start, start + self._end_of_turn(text[start:], messages[-1]))

    def _render(self, messages: Sequence[Message], example: Example) -> tuple[str, dict[int, Span] | None]:
        """Return (text, index of each assistant message -> its span where the template marks them)."""
        tokenizer = self.template.tokenizer
        source = tokenizer.get_chat_template(tools=example.tools)
        if not _GENERATION_MARKER.search(source):
            return self.template.render(messages, example), None
        variables: dict[str, Any] = {**tokenizer.special_tokens_map, **self.template.variables}
        with template_errors(example.number):
            # Annotated as returning text; in fact returns texts and the spans of their marks.
            rendered: Any = render_jinja_template(
                [list(messages)],
                tools=example.tools,
                chat_template=source,
                return_assistant_tokens_mask=True,
                **variables,
            )
        (text,), (marks,) = rendered
        assistant = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
        if len(marks) != len(assistant):
            raise RowError(
                example.number,
                f": the chat template marks {len(marks)} parts as the assistant's, "
                f"which has {len(assistant)} messages: they cannot be told apart",
            )
        return text, {
            index: (first, self._with_end(text, last))
            for index, (first, last) in zip(assistant, marks, strict=True)
        }

    def _with_end(self, text: str, end: int) -> int:
        """Return the end of a marked turn, moved behind an end-of-turn token that the mark leaves out."""
        token = self._end_token
        if token is not None and text.startswith(token, end) and not text.endswith(token, 0, end):
            return end + len(token)
        return end

    def _span_by_prefix(self, messages: Sequence[Message], index: int, text: str, example: Example) -> Span:
        before = self.template.render(messages[:index], example, opening=True)
        through = self.template.render(messages[: index + 1], example)
        end = len(before) + self._end_of_turn(through[len(before) :], messages[index])
        if not through.startswith(before) or not text.startswith(through[:end]):
            raise _rewritten(index, example)
        return len(before), end

    def _shared_opening(self, messages: Sequence[Message], before: str, text: str, example: Example) -> int:
        """Return the length of the beginning that the prompt shares with the conversation.

        Some templates open an answer with more than they write before a given answer, such as <think>. The
        prompt is then what both have in common, as in TRL; special tokens are not cut.
        """
        pairs = enumerate(zip(before, text, strict=False))
        start = next((index for index, (a, b) in pairs if a != b), min(len(before), len(text)))
        for token in self._special_tokens:
            for rendered in (before, text):
                at = rendered.find(token, max(0, start - len(token) + 1), start + len(token) - 1)
                start = at if 0 <= at < start < at + len(token) else start
        if start < len(self.template.render(messages[:-1], example)):
            raise RowError(
                example.number,
                ": the chat template renders the messages before the last one "
                "differently when the last one follows, so no prompt could be sampled that the answer "
                "continues: give the tokenizer a template that renders them alike",
            )
        return start

    def _end_of_turn(self, turn: str, message: Message) -> int:
        """Return the length of the assistant's part of a rendered turn.

        Through the end-of-turn token, else the end-of-sequence token, else without the whitespace that
        separates it from the next turn.
        """
        for token in (self._end_token, str(self.template.tokenizer.eos_token)):
            at = -1 if token is None else turn.rfind(token)
            if token is not None and at >= 0:
                return at + len(token)
        content = str(message.get("content", "")).strip()
        tail = turn[turn.rfind(content) + len(content) :] if content else turn
        # A turn that ends with whitespace only keeps that whitespace as its end.
        return len(turn.rstrip()) if tail.strip() else len(turn)

    @cached_property
    def _end_token(self) -> str | None:
        token = end_of_turn_id(self.template.tokenizer)
        return None if token is None else str(self.template.tokenizer.convert_ids_to_tokens(token))

    @cached_property
    def _special_tokens(self) -> list[str]:
        tokenizer = self.template.tokenizer
        added = getattr(tokenizer, "added_tokens_decoder", {})
        return [*tokenizer.all_special_tokens, *(token.content for token in added.values())]


def _rewritten(index: int, example: Example) -> DataError:
    """Return the error for a template that renders a turn differently than it is sampled."""
    return RowError(
        example.number,
        f": the chat template rewrites history: it renders message {index + 1}, or "
        "those before it, differently once others follow (as Qwen 3 removes the reasoning of earlier turns), "
        "so the turn cannot be imitated as it would be sampled: set turns: Last, or give the tokenizer a "
        "template that keeps what it has rendered",
    )
