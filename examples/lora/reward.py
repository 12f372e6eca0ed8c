"""Reward of an answer."""

from collections.abc import Sequence
from typing import Any


def last(
    prompts: Sequence[str], responses: Sequence[str], answer: Sequence[str], **columns: Any
) -> list[float]:
    """Return 1 for the prompt's last letter twice, else 0. `answer` is a column of the prompts' rows."""
    return [float(response == expected) for response, expected in zip(responses, answer, strict=True)]
