"""What the responses are like, counted: how far generations follow the attributes that were asked for."""

from collections.abc import Sequence
from typing import Any


def vowels(prompts: Sequence[str], responses: Sequence[str], **columns: Any) -> list[float]:
    """How many vowels each response has."""
    return [float(sum(letter in "aeiou" for letter in response)) for response in responses]


def consonants(prompts: Sequence[str], responses: Sequence[str], **columns: Any) -> list[float]:
    """How many other letters each response has."""
    return [float(sum(letter not in "aeiou" for letter in response)) for response in responses]
