"""One rule of the schema, as an API server evaluates it."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Rule:
    """A CEL expression that must hold, and what is said where it does not.

    `at` is the field that is named, below where the rule stands (`.kl.adaptive`); empty: that place itself.
    The message cannot quote what is there: an API server takes text made from numbers for boundless.
    """

    holds: str
    message: str
    at: str = ""

    def document(self) -> dict[str, Any]:
        """As the schema has it."""
        rule = {"rule": self.holds, "message": self.message}
        if self.at:
            rule["fieldPath"] = self.at
        return rule


def text(value: str) -> str:
    """A CEL string that is this text."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def unless(condition: str, holds: str) -> str:
    """CEL: where the condition is met, the other holds."""
    return f"!({condition}) || {holds}"
