"""What a row says, before it is tokens."""

from dataclasses import dataclass, field
from typing import Any, TypeAlias

#: role, content, and what else the chat template reads.
Message: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Dialogue:
    """A conversation of which several of the assistant's messages may be imitated. imitated: their indices,
    at least one."""

    messages: list[Message]
    imitated: list[int]


@dataclass(frozen=True)
class Example:
    """What a row says. `number` is its index in the source, from 0 (errors count from 1).

    responses: "response", or "chosen" and "rejected", or none for rows that are prompts only and for a
    dialogue. ratings: None for one that is not known. dialogue: where more than the last message is
    imitated; the prompt is then what stands before the first that is.
    """

    number: int
    prompt: str | list[Message]
    responses: dict[str, str] = field(default_factory=dict)
    ratings: list[float | None] | None = None
    label: bool | None = None
    chosen_rating: float | None = None
    rejected_rating: float | None = None
    dialogue: Dialogue | None = None
