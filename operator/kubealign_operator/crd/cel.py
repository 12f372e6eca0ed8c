"""CEL validation rules of the schema."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class CelRule:
    """A CEL expression that must hold, and the message of its violation.

    `field_path` is the reported field, below the location of the rule (`.kl.adaptive`); empty: the
    location itself. Messages are constant: in the API server's cost estimate, text built from numbers is
    unbounded.
    """

    expression: str
    message: str
    field_path: str = ""

    def to_schema(self) -> dict[str, Any]:
        """Return the rule in the notation of the schema."""
        rule = {"rule": self.expression, "message": self.message}
        if self.field_path:
            rule["fieldPath"] = self.field_path
        return rule


def cel_string(value: str) -> str:
    """Return a CEL string literal."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


def implies(condition: str, consequence: str) -> str:
    """Return the CEL implication: if the condition holds, the consequence must hold."""
    return f"!({condition}) || {consequence}"
