"""Multiple choice: the letter that a response chooses."""

import re
from collections.abc import Mapping
from typing import Any

from kubealign.spec.sections.verifiers import MultipleChoiceVerifier
from kubealign_services.scoring.functions.results import RewardResult
from kubealign_services.scoring.verifiers.contract import UnusableRow


class MultipleChoice:
    """1 for a response that chooses the row's letter, else 0."""

    def __init__(self, spec: MultipleChoiceVerifier) -> None:
        self._column = spec.answer_column
        self._choices = spec.choices
        letter = f"[{spec.choices}]"
        # Each may stand in parentheses, and between asterisks of Markdown.
        marked = rf"[*_(\[]*({letter})(?![A-Za-z0-9])"
        self._patterns = (
            re.compile(rf"\\boxed\{{\s*(?:\\text\w*\{{)?\s*\(?({letter})\)?\s*\}}"),
            re.compile(rf"(?i:\banswer\s*(?:is|:))[\s:]*{marked}"),
            re.compile(rf"^\s*{marked}[*_)\].]*\s*\Z", re.MULTILINE),
        )

    def score(self, response: str, row: Mapping[str, Any]) -> RewardResult:
        answer = row[self._column]
        if answer is None:
            return RewardResult(None)
        letter = self._letter(answer)
        if letter is None:
            raise UnusableRow(
                f"{self._column} is {str(answer)[:200]!r}; it must be one of {', '.join(self._choices)}, or "
                f"an index from 0 to {len(self._choices) - 1}"
            )
        choice = self.choice(response)
        return RewardResult(
            float(choice == letter), explanation=f"chose {choice or 'no letter'}; the answer is {letter}"
        )

    def _letter(self, answer: Any) -> str | None:
        """Return the letter of a row's answer, a letter or an index; None for any other value."""
        if isinstance(answer, int) and not isinstance(answer, bool):
            return self._choices[answer] if 0 <= answer < len(self._choices) else None
        letter = str(answer).strip().strip("().").upper()
        return letter if len(letter) == 1 and letter in self._choices else None

    def choice(self, response: str) -> str | None:
        """Return the letter that the response chooses; None where it chooses none."""
        for pattern in self._patterns:
            letters = [match[1] for match in pattern.finditer(response)]
            if letters:
                return letters[-1]
        return None
