"""Examples: parsed rows before tokenisation."""

from dataclasses import dataclass, field
from typing import Any, TypeAlias

#: role, content, and other fields that the chat template reads.
Message: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Dialogue:
    """A conversation in which several assistant messages may be imitated. imitated: their indices, at least
    one.
    """

    messages: list[Message]
    imitated: list[int]


@dataclass(frozen=True)
class Example:
    """A parsed row. `number` is its index in the source, from 0 (errors count from 1).

    responses: "response", or "chosen" and "rejected", of a text prompt. answers: the same for a prompt of
    messages. Both are empty for rows with a prompt only and for a dialogue. ratings: None for an unknown
    rating. step_labels: of the steps of the response, None for an unknown one. dialogue: where more than the
    last message is imitated; the prompt then holds the messages before the first imitated one. tools: JSON
    schemas for the chat template; None: none.
    """

    number: int
    prompt: str | list[Message]
    responses: dict[str, str] = field(default_factory=dict)
    answers: dict[str, Message] = field(default_factory=dict)
    ratings: list[float | None] | None = None
    step_labels: list[float | None] | None = None
    label: bool | None = None
    chosen_rating: float | None = None
    rejected_rating: float | None = None
    dialogue: Dialogue | None = None
    tools: list[Any] | None = None
