"""Measure of the answers."""

from collections.abc import Sequence
from typing import Any


def right(
    prompts: Sequence[str], responses: Sequence[str], answer: Sequence[str], **columns: Any
) -> list[float]:
    """Return 1 for the right sum, else 0. `answer` is a column of the rows."""
    return [float(response == expected) for response, expected in zip(responses, answer, strict=True)]
