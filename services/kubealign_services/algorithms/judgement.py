"""Scores read from a judge's answers. Pure."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean


@dataclass(frozen=True)
class Verdict:
    """What the judge's answers about one response say. answers: how many there are; unparsed: those of
    them that hold no score."""

    score: float | None
    answers: int
    unparsed: int


def verdict(answers: Sequence[str], pattern: str) -> Verdict:
    """The mean of the scores that the answers hold. An answer's score is what the pattern's group finds
    first, where it is a finite number."""
    found = [score for answer in answers if (score := _score(answer, pattern)) is not None]
    return Verdict(fmean(found) if found else None, len(answers), len(answers) - len(found))


def _score(answer: str, pattern: str) -> float | None:
    match = re.search(pattern, answer)
    try:
        score = float(match.group(1)) if match is not None and match.group(1) is not None else math.nan
    except ValueError:
        return None
    return score if math.isfinite(score) else None
