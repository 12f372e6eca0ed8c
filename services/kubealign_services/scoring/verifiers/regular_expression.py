"""Regular expressions on responses."""

import re
from collections.abc import Mapping
from typing import Any

from kubealign.spec.sections.verifiers import RegexVerifier
from kubealign_services.scoring.functions.results import RewardResult

_ANSWER_GROUP = "answer"


class RegexMatch:
    """1 for a response that the pattern matches, with the row's answer where the spec names its column."""

    def __init__(self, spec: RegexVerifier) -> None:
        self._pattern = re.compile(spec.pattern)
        self._full = spec.full_match
        self._column = spec.answer_column

    def score(self, response: str, row: Mapping[str, Any]) -> RewardResult:
        expected = None if self._column is None else row[self._column]
        if self._column is not None and expected is None:
            return RewardResult(None)
        match = self._last_match(response)
        if match is None:
            return RewardResult(0.0, explanation="no match")
        if self._column is None:
            return RewardResult(1.0, explanation=f"matched {match[0]!r}")
        answer, right = _answer_of(match).strip(), str(expected).strip()
        return RewardResult(float(answer == right), explanation=f"read {answer!r}; the answer is {right!r}")

    def _last_match(self, response: str) -> re.Match[str] | None:
        if self._full:
            return self._pattern.fullmatch(response)
        last = None
        for last in self._pattern.finditer(response):  # noqa: B007 (the last one counts)
            pass
        return last


def _answer_of(match: re.Match[str]) -> str:
    if _ANSWER_GROUP in match.re.groupindex:
        return match[_ANSWER_GROUP] or ""
    return (match[1] if match.re.groups else match[0]) or ""
