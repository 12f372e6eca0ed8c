"""Contract of a parser of tool calls."""

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias


@dataclass(frozen=True)
class ToolCall:
    """A call. `arguments` are those that the policy wrote, not validated."""

    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class InvalidCall:
    """Text that begins as a call and is none. `problem` is for the policy."""

    problem: str


ParsedCall: TypeAlias = ToolCall | InvalidCall


class ToolCallParser(Protocol):
    """Parser of one format."""

    def parse(self, text: str) -> list[ParsedCall]:
        """Return the calls of a turn in their order; none: the turn calls no tool.

        Args:
            text: Text of the turn with its special tokens, without reasoning and without the token that
                ends it.

        Never raises: a call that cannot be read is an InvalidCall.
        """
