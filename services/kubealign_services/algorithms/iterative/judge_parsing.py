"""Parsing of scores from a judge model's responses. Pure."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean


@dataclass(frozen=True)
class JudgeScore:
    """Parsed score of one response.

    answers: number of judge responses. unparsed: number of those without a score.
    """

    score: float | None
    answers: int
    unparsed: int


def parse_judge_scores(answers: Sequence[str], pattern: str) -> JudgeScore:
    """Return the mean of the scores found in the judge responses.

    The score of a judge response is the first match of the pattern's group that is a finite number.
    """
    scores = [score for answer in answers if (score := _parse_score(answer, pattern)) is not None]
    return JudgeScore(fmean(scores) if scores else None, len(answers), len(answers) - len(scores))


def _parse_score(answer: str, pattern: str) -> float | None:
    match = re.search(pattern, answer)
    try:
        score = float(match.group(1)) if match is not None and match.group(1) is not None else math.nan
    except ValueError:
        return None
    return score if math.isfinite(score) else None
