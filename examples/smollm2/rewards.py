"""Rewards of the sums. `answer` is a column of the prompts' rows."""

import re
from collections.abc import Sequence
from typing import Any

NUMBER = re.compile(r"\d+")


def right(
    prompts: Sequence[str], responses: Sequence[str], answer: Sequence[str], **columns: Any
) -> list[float]:
    """Return 1 for a response whose last number is the sum, else 0."""
    return [
        float(NUMBER.findall(response)[-1:] == [total])
        for response, total in zip(responses, answer, strict=True)
    ]


def number_only(prompts: Sequence[str], responses: Sequence[str], **columns: Any) -> list[float]:
    """Return 1 for a response that is a number and nothing else, else 0."""
    return [float(NUMBER.fullmatch(response.strip()) is not None) for response in responses]
