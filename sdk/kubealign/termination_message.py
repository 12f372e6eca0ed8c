"""The last error of a process, from the end of its log or its termination message."""

import json
from typing import Any

_MAX_CHARACTERS = 1500
_ERROR_LEVELS = ("ERROR", "CRITICAL", "FATAL")


def last_error_line(text: str) -> str:
    """Return the last error among JSON log lines, otherwise the last line; empty: no output.

    The first line may be truncated, since Kubernetes keeps only the end of a log.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return ""
    events = [event for line in lines if (event := _parse_event(line)) is not None]
    # A traceback or library output after the last JSON event is more recent than the event.
    if events and _parse_event(lines[-1]) is not None:
        errors = [event for event in events if str(event.get("level", "")).upper() in _ERROR_LEVELS]
        return truncate_middle(_describe_event((errors or events)[-1]))
    return truncate_middle(lines[-1])


def truncate_middle(text: str, max_characters: int = _MAX_CHARACTERS) -> str:
    """Truncate a text in the middle, since both ends are informative."""
    if len(text) <= max_characters:
        return text
    half = (max_characters - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"


def _parse_event(line: str) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and "message" in event else None


def _describe_event(event: dict[str, Any]) -> str:
    message = str(event["message"])
    exception_text = next(
        (str(event[key]) for key in ("exception", "traceback", "error") if event.get(key)), ""
    )
    last = exception_text.strip().splitlines()[-1:] if exception_text.strip() else []
    return ": ".join([message, *(line for line in last if line not in message)])
