"""Sequences of a session: requests that continue one, and those that begin another."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from kubealign_services.roles.rollout.agents.sequences import (
    AnswerRecord,
    Continuation,
    Message,
    SequenceRecord,
    choose_sequence,
    continue_chat,
    continue_text,
    continue_tokens,
)


def encode(text: str) -> list[int]:
    """Encode pairs of characters as one id each, so that ids depend on where the encoding begins."""
    return [hash_of(text[index : index + 2]) for index in range(0, len(text), 2)]


def hash_of(pair: str) -> int:
    return sum(ord(letter) << (8 * index) for index, letter in enumerate(pair))


def decode(tokens: Sequence[int]) -> str:
    return "".join(chr(token & 255) + (chr(token >> 8) if token >> 8 else "") for token in tokens)


class Template:
    """Template `u(text).` and `a(text).`, which opens an answer by `a(`.

    summarises: it drops all messages but the last when there are more than two.
    """

    def __init__(self, *, summarises: bool = False) -> None:
        self.summarises = summarises

    def text(self, messages: Sequence[Message]) -> str:
        shown = messages[-1:] if self.summarises and len(messages) > 2 else messages
        return "".join(f"{each['role'][0]}({each['content']})." for each in shown) + "a("

    def after(self, turn: Sequence[int], messages: Sequence[Message]) -> Continuation | None:
        ending = "" if decode(turn).endswith(").") else ")."
        text = ending + "".join(f"{each['role'][0]}({each['content']})." for each in messages) + "a("
        return Continuation(text, encode(text))


class ReopeningTemplate(Template):
    """Template that opens all answers but the first by `A(`."""

    def text(self, messages: Sequence[Message]) -> str:
        text = super().text(messages)
        return text if len(messages) == 1 else text.removesuffix("a(") + "A("


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def assistant(text: str) -> Message:
    return {"role": "assistant", "content": text}


def answered(question: str, answer: str, raw: str | None = None) -> SequenceRecord:
    """Return the record of a chat with one answer, which is encoded letter by letter."""
    opening = Template().text([user(question)])
    raw = answer if raw is None else raw
    tokens = [*encode(opening), *(hash_of(letter) for letter in raw + ").")]
    record = AnswerRecord(1, assistant(answer), raw)
    return SequenceRecord(f"{opening}{raw}).", tokens, [record])


def test_an_answer_that_is_sent_back_continues_its_sequence() -> None:
    record = answered("1+1", "two")
    messages = [user("1+1"), assistant("two"), user("sure")]
    assert continue_chat(record, messages, Template()) == Continuation("u(sure).a(", encode("u(sure).a("))


def test_an_answer_is_rendered_with_its_raw_text() -> None:
    record = answered("1+1", "two", raw="<b>two")
    messages = [user("1+1"), assistant("two"), user("sure")]
    assert continue_chat(record, messages, Template()) is not None
    record.answers[0] = AnswerRecord(1, assistant("two"), "two")
    assert continue_chat(record, messages, Template()) is None


def test_other_conversations_do_not_continue_a_sequence() -> None:
    record = answered("1+1", "two")
    for messages in (
        [user("1+1")],
        [user("1+2"), assistant("two"), user("sure")],
        [user("1+1"), assistant("three"), user("sure")],
        [user("1+1"), user("sure"), assistant("two")],
        [user("1+1"), assistant("two")],
    ):
        assert continue_chat(record, messages, Template()) is None, messages


def test_a_template_that_rewrites_earlier_messages_splits() -> None:
    record = answered("1+1", "two")
    messages = [user("1+1"), assistant("two"), user("sure")]
    assert continue_chat(record, messages, Template(summarises=True)) is None


def test_a_template_that_renders_later_messages_differently_splits() -> None:
    """The ids of the messages in a short conversation are not those of the whole one."""
    record = answered("1+1", "two")
    messages = [user("1+1"), assistant("two"), user("sure")]
    assert continue_chat(record, messages, ReopeningTemplate()) is None


def test_a_request_whose_answer_was_lost_is_repeated_without_new_tokens() -> None:
    record = answered("1+1", "two")
    record.text += "u(sure).a("
    record.tokens += encode("u(sure).a(")
    messages = [user("1+1"), assistant("two"), user("sure")]
    assert continue_chat(record, messages, Template()) == Continuation()


def test_the_longest_idle_sequence_is_continued() -> None:
    short, long, busy = (SequenceRecord(text, encode(text)) for text in ("ab", "abcd", "abcdef"))
    busy.is_busy = True
    records = [short, long, busy]
    choice = choose_sequence(records, lambda record: continue_text(record, "abcdefgh", encode))
    assert choice == (long, Continuation("efgh", encode("efgh")))
    assert choose_sequence(records, lambda record: continue_text(record, "b", encode)) is None


_LETTERS = st.text("ab", min_size=1, max_size=4)


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(st.integers(0, 5), _LETTERS, _LETTERS, st.booleans()), min_size=1, max_size=12))
def test_every_turn_is_in_one_sequence_after_the_ids_that_the_policy_saw(
    calls: list[tuple[int, str, str, bool]],
) -> None:
    """An agent continues any earlier text, or begins a new one, as text or as ids, and nothing is lost.

    calls: (index of the earlier text to continue, text between, sampled text, True: the prompt is ids).
    """
    texts: list[tuple[str, list[int]]] = [("", [])]
    records: list[SequenceRecord] = []
    masks: dict[int, list[int]] = {}
    seen: list[tuple[SequenceRecord, int, list[int], list[int]]] = []
    for index, between, answer, is_ids in calls:
        earlier_text, earlier_ids = texts[index % len(texts)]
        text, ids = earlier_text + between, [*earlier_ids, *encode(between)]

        def continue_one(
            record: SequenceRecord, text: str = text, ids: list[int] = ids, is_ids: bool = is_ids
        ) -> Continuation | None:
            if is_ids:
                return continue_tokens(record, ids, decode)
            return continue_text(record, text, encode)

        choice = choose_sequence(records, continue_one)
        if choice is None:
            prompt = ids if is_ids else encode(text)
            record = SequenceRecord(text, list(prompt))
            records.append(record)
            masks[id(record)] = [0] * len(prompt)
        else:
            record, continuation = choice
            record.text += continuation.text
            record.tokens += continuation.tokens
            masks[id(record)] += [0] * len(continuation.tokens)
        # The policy saw the text of the request, as the ids that were recorded.
        assert record.text == text
        assert decode(record.tokens) == text
        if is_ids:
            assert record.tokens == ids
        # Letter by letter, as no encoding of the text would have it.
        sampled = [hash_of(letter) for letter in answer]
        seen.append((record, len(record.tokens), list(record.tokens), sampled))
        record.tokens += sampled
        record.text += answer
        masks[id(record)] += [1] * len(sampled)
        texts.append((record.text, list(record.tokens)))
    for record, start, prompt, sampled in seen:
        assert record.tokens[:start] == prompt
        assert record.tokens[start : start + len(sampled)] == sampled
    assert sum(sum(mask) for mask in masks.values()) == sum(len(sampled) for *_, sampled in seen)
    assert all(len(masks[id(record)]) == len(record.tokens) for record in records)
