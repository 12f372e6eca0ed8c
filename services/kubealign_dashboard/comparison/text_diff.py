"""Differences of two texts, word by word."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

#: Longest sequence that is compared: the time grows with its square, and in the worst case with its cube.
MAX_UNITS = 1500
_WORDS = re.compile(r"\s+|\w+|[^\w\s]")
_LINES = re.compile(r"[^\n]*\n|[^\n]+")


@dataclass(frozen=True)
class DiffPart:
    """Part of a text; `changed`: the other text lacks it."""

    text: str
    changed: bool


@dataclass(frozen=True)
class TextDiff:
    """Both texts in parts. `unit`: word or line, by which they were compared; text: they were too long."""

    left: list[DiffPart]
    right: list[DiffPart]
    unit: str


def compare_texts(left: str, right: str) -> TextDiff:
    """Compare by words; longer texts by lines, and texts of many lines as a whole.

    Joined, the parts of a side are its text.
    """
    if left == right:
        return TextDiff(_parts([(left, False)]), _parts([(right, False)]), "word")
    for unit, pattern in (("word", _WORDS), ("line", _LINES)):
        left_units, right_units = pattern.findall(left), pattern.findall(right)
        if max(len(left_units), len(right_units)) <= MAX_UNITS:
            return _compare_units(left_units, right_units, unit)
    return TextDiff(_parts([(left, True)]), _parts([(right, True)]), "text")


def _compare_units(left: Sequence[str], right: Sequence[str], unit: str) -> TextDiff:
    left_parts: list[tuple[str, bool]] = []
    right_parts: list[tuple[str, bool]] = []
    # White space aligns any two texts: it is no anchor for a match, but extends one.
    matcher = SequenceMatcher(str.isspace, left, right)
    for kind, left_start, left_end, right_start, right_end in matcher.get_opcodes():
        changed = kind != "equal"
        left_parts.append(("".join(left[left_start:left_end]), changed))
        right_parts.append(("".join(right[right_start:right_end]), changed))
    return TextDiff(_parts(left_parts), _parts(right_parts), unit)


def _parts(parts: Sequence[tuple[str, bool]]) -> list[DiffPart]:
    return [DiffPart(text, changed) for text, changed in parts if text]
