"""Reward for numbers that are nearly right."""

import math
from collections.abc import Sequence
from typing import Any


class Nearness:
    """Reward exp(-|response - answer| / scale); 0 if the response is not a number."""

    def __init__(self, scale: float = 1.0) -> None:
        if not scale > 0:
            raise ValueError(f"scale must be above 0, not {scale}")
        self._scale = scale

    def __call__(
        self, prompts: Sequence[str], responses: Sequence[str], answer: Sequence[str], **columns: Any
    ) -> list[float]:
        return [self._one(response, right) for response, right in zip(responses, answer, strict=True)]

    def _one(self, response: str, answer: str) -> float:
        try:
            return math.exp(-abs(int(response) - int(answer)) / self._scale)
        except ValueError:
            return 0.0
