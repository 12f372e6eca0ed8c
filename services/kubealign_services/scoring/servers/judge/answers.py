"""Reading of a judge's answers. Pure."""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from kubealign.spec.sections.reward_servers import JudgeScale
from kubealign_services.scoring.servers.endpoint import UnusableAnswer

_SHOWN_CHARACTERS = 200
#: Most braces, from the end of an answer, at which an object is looked for.
_MAX_BRACES = 64
_NUMBER = r"[-+]?[0-9]+(?:\.[0-9]+)?"
_SCORE_TEXT = re.compile(rf"\b(?:score|rating)\b[^-+0-9\n]{{0,20}}({_NUMBER})", re.IGNORECASE)
_DECODER = json.JSONDecoder()


class Winner(StrEnum):
    """Better of two responses, or none."""

    FIRST = "A"
    SECOND = "B"
    TIE = "tie"


@dataclass(frozen=True)
class JudgeAnswer:
    """Text of an answer, and the number of tokens of question and answer; 0 where the server reports none.

    version: version of the policy's weights that gave it; None: another model did.
    """

    text: str
    tokens: int
    version: int | None = None


def read_chat_answer(answer: Any) -> JudgeAnswer:
    """Return the text of an answer of /chat/completions. Raises UnusableAnswer."""
    try:
        text = answer["choices"][0]["message"]["content"]
        usage = answer.get("usage") or {}
        tokens = int(usage.get("total_tokens") or 0)
        version = answer.get("weight_version")
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        raise UnusableAnswer("the answer has no choices[0].message.content") from error
    if not isinstance(text, str) or not text.strip():
        raise UnusableAnswer("the judge's answer is empty: it may need more maxTokens")
    return JudgeAnswer(text, tokens, version)


def read_score(text: str, scale: JudgeScale) -> tuple[float, str]:
    """Return the score and the explanation of an answer: those of its last JSON object with a score, else
    the last number after "score" or "rating".

    Raises UnusableAnswer for an answer without a score, or with one outside the scale.
    """
    document = next((each for each in _objects_from_the_end(text) if "score" in each), None)
    if document is not None:
        score, explanation = _to_number(document["score"]), str(document.get("explanation") or "")
    else:
        matches = _SCORE_TEXT.findall(text)
        score, explanation = (float(matches[-1]) if matches else None), text.strip()
    if score is None:
        raise UnusableAnswer(f"the judge gives no score: {_shown(text)}")
    if not scale.lowest <= score <= scale.highest:
        raise UnusableAnswer(
            f"the judge gives the score {score:g}, which is not from {scale.lowest:g} to {scale.highest:g}"
        )
    return score, explanation


def read_winner(text: str) -> tuple[Winner, str]:
    """Return the winner and the explanation of an answer: those of its last JSON object with a winner.

    Raises UnusableAnswer for an answer without one.
    """
    document = next((each for each in _objects_from_the_end(text) if "winner" in each), None)
    if document is None:
        raise UnusableAnswer(f"the judge names no winner: {_shown(text)}")
    name = str(document["winner"]).strip().casefold()
    winner = next((each for each in Winner if each.value.casefold() == name), None)
    if winner is None:
        raise UnusableAnswer(f"the judge names the winner {name[:40]!r}; it must be A, B or tie")
    return winner, str(document.get("explanation") or "")


def _objects_from_the_end(text: str) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects in a text, the last one first."""
    start = text.rfind("{")
    for _ in range(_MAX_BRACES):
        if start < 0:
            return
        try:
            value, _ = _DECODER.raw_decode(text, start)
        except (ValueError, RecursionError):
            value = None
        if isinstance(value, dict):
            yield value
        start = text.rfind("{", 0, start)


def _to_number(value: Any) -> float | None:
    """Return a finite number, also of its text; None for anything else."""
    if isinstance(value, str) and re.fullmatch(_NUMBER, value.strip()):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return float(value)


def _shown(text: str) -> str:
    shown = " ".join(text.split())
    return repr(shown if len(shown) <= _SHOWN_CHARACTERS else f"{shown[:_SHOWN_CHARACTERS]}...")
