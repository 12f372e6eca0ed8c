"""Checks of regular expressions in a spec."""

import re


def check_one_group(pattern: str) -> str:
    """Return a regular expression that has exactly one group. Raises ValueError for any other text."""
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise ValueError(f"is not a regular expression: {error}") from error
    if groups != 1:
        raise ValueError(f"must have one group, and has {groups}: (?:...) groups without one")
    return pattern
