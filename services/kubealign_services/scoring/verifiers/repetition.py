"""Penalty of repeated phrases."""

from collections.abc import Mapping
from typing import Any

from kubealign.spec.sections.verifiers import RepetitionVerifier
from kubealign_services.scoring.functions.results import RewardResult


class Repetition:
    """maxPenalty times the share of n-grams that occurred before in the response."""

    def __init__(self, spec: RepetitionVerifier) -> None:
        self._spec = spec

    def score(self, response: str, row: Mapping[str, Any]) -> RewardResult:
        words = response.lower().split()
        count = len(words) - self._spec.ngram + 1
        if count < 1:
            return RewardResult(0.0)
        distinct = {tuple(words[start : start + self._spec.ngram]) for start in range(count)}
        repeated = count - len(distinct)
        return RewardResult(
            self._spec.max_penalty * repeated / count,
            explanation=f"{repeated} of {count} sequences of {self._spec.ngram} words occurred before",
        )
