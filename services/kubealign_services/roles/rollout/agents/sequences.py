"""Sequences of a session: the place at which a request continues an earlier one. Pure.

A sequence is the tokens of a prompt, of the policy's turns and of what stands between them. A request
continues a sequence if its rendered text begins with the text of the sequence: then the recorded tokens stay
as they are, and only the text after them is encoded. Anything else is another sequence: a summary of the
history, another system prompt, or a chat template that renders earlier turns differently.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar

#: Chat message as a chat template reads it.
Message: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True)
class AnswerRecord:
    """Turn of the policy in a chat. position: number of messages before it. message: as the agent received
    it. raw: its text with special tokens, without the token that ended it.
    """

    position: int
    message: Message
    raw: str


@dataclass
class SequenceRecord:
    """Sequence of a session.

    text: as the chat template and the policy wrote it, with special tokens. tokens: its ids. answers: turns
    of a chat. is_busy: the policy is generating in it, so that no other request can continue it.
    """

    text: str
    tokens: list[int]
    answers: list[AnswerRecord] = field(default_factory=list)
    is_busy: bool = False


AnyRecord = TypeVar("AnyRecord", bound=SequenceRecord)


@dataclass(frozen=True)
class Continuation:
    """Text and ids between a sequence and the policy's next turn in it."""

    text: str = ""
    tokens: Sequence[int] = ()


class ConversationRenderer(Protocol):
    """Chat template of a policy."""

    def text(self, messages: Sequence[Message]) -> str:
        """Return the text of messages with the opening of an answer."""

    def after(self, turn: Sequence[int], messages: Sequence[Message]) -> Continuation | None:
        """Return the messages that follow a turn with these ids, from the turn's end on; None: the template
        does not take them so.
        """


def continue_chat(
    record: SequenceRecord, messages: Sequence[Message], renderer: ConversationRenderer
) -> Continuation | None:
    """Return the continuation of a sequence by the request of these messages; None: they do not continue it.

    Answers that the agent sends back as it received them are rendered with their raw text, so that neither
    the format of tool calls nor a hidden special token splits a sequence; where that is not the text of the
    sequence, since a template adds what a turn begins with, they are rendered as they are.
    """
    raw = list(messages)
    for answer in record.answers:
        if answer.position >= len(raw) or raw[answer.position] != answer.message:
            return None
        raw[answer.position] = {"role": "assistant", "content": answer.raw}
    text = renderer.text(raw)
    if not text.startswith(record.text):
        text = renderer.text(messages)
    if text == record.text:
        # A request whose answer was not generated is repeated.
        return Continuation()
    following = messages[record.answers[-1].position + 1 :] if record.answers else ()
    if not following or not text.startswith(record.text):
        return None
    continuation = renderer.after(record.tokens, following)
    if continuation is None or record.text + continuation.text != text:
        return None
    return continuation


def continue_text(
    record: SequenceRecord, prompt: str, encode: Callable[[str], list[int]]
) -> Continuation | None:
    """Return the continuation of a sequence by a prompt of text; None: the prompt does not continue it."""
    if not prompt.startswith(record.text):
        return None
    following = prompt[len(record.text) :]
    return Continuation(following, encode(following))


def continue_tokens(
    record: SequenceRecord, prompt: Sequence[int], decode: Callable[[Sequence[int]], str]
) -> Continuation | None:
    """Return the continuation of a sequence by a prompt of ids; None: the prompt does not continue it."""
    count = len(record.tokens)
    if list(prompt[:count]) != record.tokens:
        return None
    return Continuation(decode(prompt[count:]), list(prompt[count:]))


def choose_sequence(
    records: Iterable[AnyRecord], continue_one: Callable[[SequenceRecord], Continuation | None]
) -> tuple[AnyRecord, Continuation] | None:
    """Return (sequence that a request continues, its continuation); None: the request begins another one.

    The longest one is taken; a sequence in which the policy is generating is left alone.
    """
    continued = [
        (record, continuation)
        for record in records
        if not record.is_busy and (continuation := continue_one(record)) is not None
    ]
    return max(continued, key=lambda each: len(each[0].tokens), default=None)
