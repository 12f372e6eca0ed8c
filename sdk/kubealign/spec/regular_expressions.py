"""Checks of regular expressions in a spec."""

import re


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Compile a regular expression. Raises ValueError for a text that is none."""
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"is not a regular expression: {error}") from error


def check_one_group(pattern: str) -> str:
    """Return a regular expression that has exactly one group. Raises ValueError for any other text."""
    groups = compile_pattern(pattern).groups
    if groups != 1:
        raise ValueError(f"must have one group, and has {groups}: (?:...) groups without one")
    return pattern
