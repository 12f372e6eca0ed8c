"""What the answers are measured by."""

from collections.abc import Sequence
from typing import Any


def right(
    prompts: Sequence[str], responses: Sequence[str], answer: Sequence[str], **columns: Any
) -> list[float]:
    """1 for the right sum, else 0. `answer` is a column of the rows."""
    return [float(response == wanted) for response, wanted in zip(responses, answer, strict=True)]
