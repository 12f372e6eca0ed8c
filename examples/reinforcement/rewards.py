"""Reward of all jobs of jobs.yaml."""

from collections.abc import Sequence
from typing import Any


def repeated(prompts: Sequence[str], responses: Sequence[str], **columns: Any) -> list[float]:
    """Return the share of the response's characters that are the prompt's last letter."""
    return [
        response.count(prompt[-1]) / max(1, len(response))
        for prompt, response in zip(prompts, responses, strict=True)
    ]
