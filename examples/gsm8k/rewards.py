"""Rewards for answers to GSM8K's questions, which end with a line `#### NUMBER`."""

import re

NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
CLOSING = re.compile(r"####\s*\$?(-?\d[\d,]*(?:\.\d+)?)")


def _value(number: str) -> float:
    return float(number.replace(",", ""))


def _closing(text: str) -> float | None:
    """The number after the last `####`, or None."""
    found = CLOSING.findall(text)
    return _value(found[-1]) if found else None


def exact(prompts: list[str], responses: list[str], *, answer: list[str], **columns: object) -> list[float]:
    """1 where the response closes with the number that the worked solution closes with, else 0."""
    wanted = [_closing(text) for text in answer]
    return [
        float(right is not None and _closing(response) == right)
        for response, right in zip(responses, wanted, strict=True)
    ]


def form(prompts: list[str], responses: list[str], **columns: object) -> list[float]:
    """Half for closing with `#### NUMBER`, up to a quarter for calculating (a sixteenth for each of the first
    four numbers), and up to a quarter for the share of distinct words.

    It leads a model that never closes to where `exact` can tell its answers apart; weigh it lightly.
    """
    return [
        0.5 * (_closing(response) is not None)
        + 0.0625 * min(len(NUMBER.findall(response)), 4)
        + 0.25 * _distinct_share(response.split())
        for response in responses
    ]


def _distinct_share(words: list[str]) -> float:
    return len(set(words)) / len(words) if words else 0.0
