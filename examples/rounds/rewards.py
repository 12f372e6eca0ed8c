"""Rewards and measures of the jobs, from 0 to 1."""

from collections.abc import Sequence
from typing import Any


def wanted(prompts: Sequence[str], responses: Sequence[str], **columns: Any) -> list[float]:
    """Return the share of three letters that are the prompt's last one; 0 for a word of another length."""
    return [
        response.count(prompt[-2]) / 3 if len(response) == 3 else 0.0
        for prompt, response in zip(prompts, responses, strict=True)
    ]


def letter_a(prompts: Sequence[str], responses: Sequence[str], **columns: Any) -> list[float]:
    """Return the share of three letters that are the letter a; 0 for a word of another length."""
    return [response.count("a") / 3 if len(response) == 3 else 0.0 for response in responses]
