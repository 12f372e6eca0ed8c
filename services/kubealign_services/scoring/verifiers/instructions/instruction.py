"""Instruction of the registry: its parameters and its check."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kubealign_services.scoring.shortened_text import shorten

#: Relations between the count in a response and the number in the instruction.
LESS_THAN = "less than"
AT_LEAST = "at least"

#: Most characters of a text of the row or of the response in an explanation.
_QUOTED_CHARACTERS = 60


@dataclass(frozen=True)
class InstructionVerdict:
    """Decision of a check, with what was asked for and what the response has: "at least 300; 212 words"."""

    followed: bool
    reading: str


@dataclass(frozen=True)
class ParameterType:
    """Type of a parameter.

    Args:
        allowed: Allowed values, for errors: "a whole number of 0 or more".
        read: Returns the value as the check takes it. Raises ValueError for any other value.
    """

    allowed: str
    read: Callable[[Any], Any]


@dataclass(frozen=True)
class Instruction:
    """Check of an instruction.

    Args:
        check: Takes the response, which is never blank, and the parameters by their names.
        parameters: Name -> type. All of them are required.
        limit: Names of two numbers, of which the first is at most the second.
    """

    check: Callable[..., InstructionVerdict]
    parameters: Mapping[str, ParameterType] = field(default_factory=dict)
    limit: tuple[str, str] | None = None


def is_in_relation(count: int, relation: str, threshold: int) -> bool:
    """Return whether the count is less than the threshold, or at least the threshold."""
    return count < threshold if relation == LESS_THAN else count >= threshold


def counted(count: int, noun: str) -> str:
    """Return the count with its noun: "1 word", "2 words"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def quoted(text: str) -> str:
    """Return the text in quotation marks, without its end where it is long."""
    return repr(shorten(text, _QUOTED_CHARACTERS))


def quoted_list(texts: Sequence[str]) -> str:
    """Return the texts in quotation marks, separated by commas."""
    return ", ".join(map(quoted, texts))
