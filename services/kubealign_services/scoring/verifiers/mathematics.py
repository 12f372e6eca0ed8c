"""Equality of mathematical answers, by math-verify.

It limits the time of a comparison by a signal, so it runs in a main thread only.
"""

from collections.abc import Mapping
from typing import Any

from math_verify import parse, verify

from kubealign.spec.sections.verifiers import MathExtraction, MathVerifier
from kubealign_services.scoring.functions.results import RewardResult
from kubealign_services.scoring.verifiers.boxes import last_box
from kubealign_services.scoring.verifiers.contract import UnusableRow

#: Seconds for reading a response, and for one comparison; an answer that takes longer is wrong.
_PARSE_SECONDS = 5
_COMPARE_SECONDS = 5
#: Seconds for reading the row's answer, and the grammar.
_EXPECTED_SECONDS = 60

_BOX = "\\boxed"
_GSM8K_MARK = "####"


class MathAnswer:
    """1 for a response whose answer equals the row's, else 0."""

    def __init__(self, spec: MathVerifier) -> None:
        self._spec = spec
        # The first use loads the grammar, which must not count as the time of a response.
        verify(_parse_expected("1", spec.answer_column), parse("$1$", parsing_timeout=_EXPECTED_SECONDS))

    def score(self, response: str, row: Mapping[str, Any]) -> RewardResult:
        """Raises UnusableRow where the row's answer cannot be read."""
        answer = row[self._spec.answer_column]
        if answer is None:
            return RewardResult(None)
        expected = _parse_expected(answer, self._spec.answer_column)
        if self._spec.extract is MathExtraction.BOXED:
            content = last_box(response)
            if content is None:
                return RewardResult(0.0, explanation="nothing in a \\boxed{}")
            response = f"${content}$"
        actual = parse(response, parsing_timeout=_PARSE_SECONDS)
        right = verify(expected, actual, float_rounding=self._spec.decimals, timeout_seconds=_COMPARE_SECONDS)
        # The last form is the text that was read.
        read = f"read {actual[-1]}" if actual else "read no answer"
        return RewardResult(float(right), explanation=f"{read}; the answer is {expected[-1]}")


def _parse_expected(answer: Any, column: str) -> list[Any]:
    """Return the forms in which math-verify reads the row's answer. Raises UnusableRow."""
    text = str(answer).rsplit(_GSM8K_MARK, 1)[-1].strip()
    # Without the signs of a formula math-verify reads plain numbers and fractions only.
    marked = text if "$" in text or _BOX in text else f"${text}$"
    forms: list[Any] = parse(marked, parsing_timeout=_EXPECTED_SECONDS) if text else []
    # A text that it cannot read is returned as it is.
    if all(isinstance(form, str) for form in forms):
        raise UnusableRow(f"{column} is {str(answer)[:200]!r}, which is no mathematical answer")
    return forms
