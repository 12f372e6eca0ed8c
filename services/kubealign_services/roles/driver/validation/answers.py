"""Extraction of the answer of a response, by which responses vote. Pure."""

import re
from collections.abc import Callable
from decimal import Decimal, InvalidOperation

from kubealign.spec.sections.validation import MajorityVote
from kubealign.spec.sections.verifiers import MultipleChoiceVerifier
from kubealign_services.scoring.verifiers.boxes import last_box
from kubealign_services.scoring.verifiers.multiple_choice import MultipleChoice

#: Response -> its answer, None without one. Equal answers are equal texts.
Extract = Callable[[str], str | None]

_NUMBER = re.compile(r"[-+]?(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?")


def make_extractor(spec: MajorityVote) -> Extract:
    """Return the extraction of answers that the spec names."""
    if spec.boxed is not None:
        return _boxed
    if spec.number is not None:
        return last_number
    if spec.choice is not None:
        return MultipleChoice(MultipleChoiceVerifier(choices=spec.choice.choices)).choice
    assert spec.regex is not None
    pattern = re.compile(spec.regex.pattern)

    def matched(response: str) -> str | None:
        matches = list(pattern.finditer(response))
        return (matches[-1][1] or "").strip() or None if matches else None

    return matched


def _boxed(response: str) -> str | None:
    content = last_box(response)
    return None if content is None else "".join(content.split()) or None


def last_number(response: str) -> str | None:
    """Return the last decimal number of a text in one notation: 1,200.50 is 1200.5; None without one."""
    numbers = _NUMBER.findall(response)
    if not numbers:
        return None
    try:
        number = Decimal(numbers[-1].replace(",", ""))
    except InvalidOperation:
        return None
    return format(number.normalize() + 0, "f")
