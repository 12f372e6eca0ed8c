"""Measures of the answers; nothing is trained on them."""

from typing import Any


def calm(prompts: list[str], responses: list[str], **columns: Any) -> list[float]:
    """1 for an answer that does not shout."""
    return [float("!" not in response) for response in responses]


def right(prompts: list[str], responses: list[str], **columns: Any) -> list[float]:
    """1 for the word that was asked for, calm or not."""
    return [
        float(response[:-1] == prompt.removesuffix("?") and response[-1:] in (".", "!"))
        for prompt, response in zip(prompts, responses, strict=True)
    ]
