"""Measure of the sampled answers. No job is trained on it."""

from collections.abc import Sequence
from typing import Any


def in_order(prompts: Sequence[str], responses: Sequence[str], **columns: Any) -> list[float]:
    """Return 1 for the prompt's letters in order, else 0."""
    return [
        float(response == "".join(sorted(prompt[:4])))
        for prompt, response in zip(prompts, responses, strict=True)
    ]
