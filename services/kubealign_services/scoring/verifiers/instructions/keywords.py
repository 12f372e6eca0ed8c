"""Keywords and letters in a response. Keywords are plain texts, and their case does not matter."""

import re

from kubealign_services.scoring.verifiers.instructions.instruction import (
    InstructionVerdict,
    counted,
    is_in_relation,
    quoted,
    quoted_list,
)


def check_existence(response: str, keywords: list[str]) -> InstructionVerdict:
    """Return whether each keyword occurs, also as a part of a longer word."""
    missing = [keyword for keyword in keywords if not _occurrences(re.escape(keyword), response)]
    return InstructionVerdict(not missing, f"missing: {quoted_list(missing)}")


def check_frequency(response: str, keyword: str, frequency: int, relation: str) -> InstructionVerdict:
    """Return whether the keyword occurs less than, or at least `frequency` times, also within words."""
    count = _occurrences(re.escape(keyword), response)
    return InstructionVerdict(
        is_in_relation(count, relation, frequency),
        f"{quoted(keyword)} {relation} {counted(frequency, 'time')}; {counted(count, 'time')}",
    )


def check_forbidden_words(response: str, forbidden_words: list[str]) -> InstructionVerdict:
    """Return whether none of the words occurs; a part of a longer word does not count."""
    present = [word for word in forbidden_words if _occurrences(rf"(?<!\w){re.escape(word)}(?!\w)", response)]
    return InstructionVerdict(not present, f"contains {quoted_list(present)}")


def check_letter_frequency(
    response: str, letter: str, let_frequency: int, let_relation: str
) -> InstructionVerdict:
    """Return whether the character occurs less than, or at least `let_frequency` times in either case."""
    count = response.lower().count(letter.lower())
    return InstructionVerdict(
        is_in_relation(count, let_relation, let_frequency),
        f"{quoted(letter)} {let_relation} {counted(let_frequency, 'time')}; {counted(count, 'time')}",
    )


def _occurrences(pattern: str, text: str) -> int:
    return len(re.findall(pattern, text, re.IGNORECASE))
