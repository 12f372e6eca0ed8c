"""Reward of sums-grpo."""

from collections.abc import Sequence
from typing import Any


def reward(
    prompts: Sequence[str], responses: Sequence[str], answer: Sequence[str], **columns: Any
) -> list[float]:
    """Return 1 for the right sum, else 0. `answer` is a column of the prompts' rows."""
    return [float(response == right) for response, right in zip(responses, answer, strict=True)]
