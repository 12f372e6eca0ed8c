"""Responses to held-out prompts, as a validation stores them: in a file of the run directory, and in the read
model for displays.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kubealign.read_model import parse_number


@dataclass(frozen=True)
class ValidationRecord:
    """Response of the policy to a held-out prompt.

    `row`: index of the prompt's row in the held-out rows; -1: unknown. `scores`: by source; None where the
    score does not apply. `explanations`: by source. `set_name`: evaluation set; empty: the job's only one.
    `is_shortened`: the display's copy lacks the middle of a text.
    """

    row: int
    prompt: str
    response: str
    scores: dict[str, float | None] = field(default_factory=dict)
    explanations: dict[str, str] = field(default_factory=dict)
    truncated: bool = False
    set_name: str = ""
    is_shortened: bool = False


def parse_validation_record(document: Mapping[str, Any], set_name: str = "") -> ValidationRecord:
    """Parse a response that the driver wrote as a JSON object. A value of another type counts as absent.

    Args:
        set_name: Evaluation set of a document that names none.
    """
    scores = document.get("scores")
    explanations = document.get("explanations")
    return ValidationRecord(
        row=_parse_row(document.get("group_id")),
        prompt=str(document.get("prompt", "")),
        response=str(document.get("response", "")),
        scores={
            str(name): number
            for name, value in (scores if isinstance(scores, dict) else {}).items()
            if (number := parse_number(value)) is not None or value is None
        },
        explanations={
            str(name): text
            for name, text in (explanations if isinstance(explanations, dict) else {}).items()
            if isinstance(text, str)
        },
        truncated=document.get("truncated") is True,
        set_name=str(document.get("set") or set_name),
        is_shortened=document.get("shortened") is True,
    )


def _parse_row(group_id: Any) -> int:
    """Return the row of a group id `val@STEP/ROW`."""
    text = str(group_id).rpartition("/")[2]
    return int(text) if text.isdecimal() and len(text) < 16 else -1
