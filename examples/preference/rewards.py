"""What the sampled answers are measured by; nothing is trained on it."""

from collections.abc import Sequence
from typing import Any


def in_order(prompts: Sequence[str], responses: Sequence[str], **columns: Any) -> list[float]:
    """1 for the prompt's letters in their order, else 0."""
    return [
        float(response == "".join(sorted(prompt[:4])))
        for prompt, response in zip(prompts, responses, strict=True)
    ]
