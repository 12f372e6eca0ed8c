"""Rewards for answers to GSM8K's questions, which end with a line `#### NUMBER`."""

import re

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
CLOSING = re.compile(r"####\s*\$?(-?\d[\d,]*(?:\.\d+)?)")


def _value(number: str) -> float:
    return float(number.replace(",", ""))


def _closing(text: str) -> float | None:
    """Return the number after the last `####`, or None."""
    numbers = CLOSING.findall(text)
    return _value(numbers[-1]) if numbers else None


def exact(prompts: list[str], responses: list[str], *, answer: list[str], **columns: object) -> list[float]:
    """Return 1 if response and worked solution close with the same number, else 0."""
    expected = [_closing(text) for text in answer]
    return [
        float(right is not None and _closing(response) == right)
        for response, right in zip(responses, expected, strict=True)
    ]


def form(prompts: list[str], responses: list[str], **columns: object) -> list[float]:
    """Return a reward for form: half for closing with `#### NUMBER`, up to a quarter for calculating (a
    sixteenth for each of the first four numbers), and up to a quarter for the share of distinct words.

    It teaches a model that never closes to close its answers, so that `exact` can distinguish them. Give it
    a small weight.
    """
    return [
        0.5 * (_closing(response) is not None)
        + 0.0625 * min(len(NUMBER.findall(response)), 4)
        + 0.25 * _distinct_share(response.split())
        for response in responses
    ]


def _distinct_share(words: list[str]) -> float:
    return len(set(words)) / len(words) if words else 0.0
