"""Counts of the responses' attributes, which show how well generations follow the requested ones."""

from collections.abc import Sequence
from typing import Any


def vowels(prompts: Sequence[str], responses: Sequence[str], **columns: Any) -> list[float]:
    """Return the number of vowels of each response."""
    return [float(sum(letter in "aeiou" for letter in response)) for response in responses]


def consonants(prompts: Sequence[str], responses: Sequence[str], **columns: Any) -> list[float]:
    """Return the number of other letters of each response."""
    return [float(sum(letter not in "aeiou" for letter in response)) for response in responses]
