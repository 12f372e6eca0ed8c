"""What is said to the child process that runs a reward function: one JSON object a line, each way.

Requests: {"prompts": [text], "responses": [text], "columns": {name: [value]}}; of a tool {"argument": text}.
Replies: {"rewards": [number]}, {"answer": text}, or {"error": KIND, "message": text}; the first line is the
reply to starting.
"""

from enum import StrEnum


class Failure(StrEnum):
    """What went wrong in the child."""

    MISSING = "missing"
    RAISED = "raised"
    BAD = "bad"
