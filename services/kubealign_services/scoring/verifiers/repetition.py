"""Penalty of repeated phrases."""

from collections.abc import Mapping
from typing import Any

from kubealign.spec.sections.verifiers import RepetitionVerifier


class Repetition:
    """maxPenalty times the share of n-grams that occurred before in the response."""

    def __init__(self, spec: RepetitionVerifier) -> None:
        self._spec = spec

    def score(self, response: str, row: Mapping[str, Any]) -> float | None:
        words = response.lower().split()
        count = len(words) - self._spec.ngram + 1
        if count < 1:
            return 0.0
        distinct = {tuple(words[start : start + self._spec.ngram]) for start in range(count)}
        return self._spec.max_penalty * (1 - len(distinct) / count)
