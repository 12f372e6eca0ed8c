"""CEL validation rules of the schema."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Rule:
    """A CEL expression that must hold, and the message of its violation.

    `field_path` is the reported field, below the location of the rule (`.kl.adaptive`); empty: the
    location itself. Messages are constant: in the API server's cost estimate, text built from numbers is
    unbounded.
    """

    holds: str
    message: str
    at: str = ""

    def document(self) -> dict[str, Any]:
        """Return the rule in the notation of the schema."""
        rule = {"rule": self.holds, "message": self.message}
        if self.at:
            rule["fieldPath"] = self.at
        return rule


def text(value: str) -> str:
    """Return a CEL string literal."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def unless(condition: str, holds: str) -> str:
    """Return the CEL implication: if the condition holds, the consequence must hold."""
    return f"!({condition}) || {holds}"
