"""Measures of the answers. No job is trained on them."""

from typing import Any


def calm(prompts: list[str], responses: list[str], **columns: Any) -> list[float]:
    """Return 1 for an answer that does not shout, else 0."""
    return [float("!" not in response) for response in responses]


def right(prompts: list[str], responses: list[str], **columns: Any) -> list[float]:
    """Return 1 for the requested word, calm or not, else 0."""
    return [
        float(response[:-1] == prompt.removesuffix("?") and response[-1:] in (".", "!"))
        for prompt, response in zip(prompts, responses, strict=True)
    ]
