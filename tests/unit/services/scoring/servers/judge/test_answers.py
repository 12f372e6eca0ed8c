"""Reading of a judge's answers."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubealign.spec.sections.reward_servers import JudgeScale
from kubealign_services.scoring.servers.endpoint import UnusableAnswer
from kubealign_services.scoring.servers.judge.answers import (
    JudgeAnswer,
    Winner,
    read_chat_answer,
    read_score,
    read_winner,
)

SCALE = JudgeScale(lowest=1, highest=10)


@pytest.mark.parametrize(
    ("text", "score", "explanation"),
    [
        ('{"explanation": "fine", "score": 7}', 7.0, "fine"),
        ('```json\n{"score": "7.5", "explanation": ""}\n```', 7.5, ""),
        ('<think>{"score": 2} or so</think> {"explanation": "a {b} c", "score": 3}', 3.0, "a {b} c"),
        ('{"score": 4} and {"note": 1}', 4.0, ""),
        ('{"verdict": {"score": 5}}', 5.0, ""),
        ("It is good.\nScore: 8/10", 8.0, "It is good.\nScore: 8/10"),
        ("Rating: 2, no, **Score**: 3", 3.0, "Rating: 2, no, **Score**: 3"),
    ],
)
def test_scores(text: str, score: float, explanation: str) -> None:
    assert read_score(text, SCALE) == (score, explanation)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("I cannot say.", "the judge gives no score: 'I cannot say.'"),
        ('{"score": "good"}', "gives no score"),
        ('{"score": true}', "gives no score"),
        ('{"score": NaN}', "gives no score"),
        ('{"score": null}', "gives no score"),
        ('{"score": 11}', "gives the score 11, which is not from 1 to 10"),
        ("Score: -1", "gives the score -1, which is not from 1 to 10"),
        ("[" * 10_000, "gives no score"),
        ('{"a":' * 5_000, "gives no score"),
    ],
)
def test_answers_without_a_usable_score(text: str, message: str) -> None:
    with pytest.raises(UnusableAnswer, match=message):
        read_score(text, SCALE)


@pytest.mark.parametrize(
    ("text", "winner"),
    [
        ('{"winner": "A", "explanation": "e"}', Winner.FIRST),
        ('first {"winner": "A"} then {"explanation": "e", "winner": " b "}', Winner.SECOND),
        ('{"explanation": "e", "winner": "Tie"}', Winner.TIE),
    ],
)
def test_winners(text: str, winner: Winner) -> None:
    assert read_winner(text) == (winner, "e")


@pytest.mark.parametrize(
    ("text", "message"),
    [("A is better", "names no winner"), ('{"winner": "C"}', "names the winner 'c'; it must be A, B or tie")],
)
def test_answers_without_a_winner(text: str, message: str) -> None:
    with pytest.raises(UnusableAnswer, match=message):
        read_winner(text)


def chat(content: Any, **fields: Any) -> dict[str, Any]:
    return {"choices": [{"message": {"content": content}}], **fields}


def test_chat_answers() -> None:
    assert read_chat_answer(chat("x", usage={"total_tokens": 7})) == JudgeAnswer("x", 7)
    assert read_chat_answer(chat("x")) == read_chat_answer(chat("x", usage=None)) == JudgeAnswer("x", 0)
    for empty in (None, "", " \n", ["x"]):
        with pytest.raises(UnusableAnswer, match="empty"):
            read_chat_answer(chat(empty))
    for other in (None, [], {}, {"choices": []}, {"choices": [{"text": "x"}]}, chat("x", usage=[1])):
        with pytest.raises(UnusableAnswer, match=r"no choices\[0\]\.message\.content"):
            read_chat_answer(other)


@given(st.text(), st.floats(1, 10), st.text(alphabet=st.characters(exclude_characters="{")))
def test_a_score_survives_any_text_around_it(before: str, score: float, after: str) -> None:
    assert read_score(f'{before}{{"score": {score}}}{after}', SCALE)[0] == score
