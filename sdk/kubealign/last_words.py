"""The last error of a process, from the end of its log or its termination message."""

import json
from typing import Any

_LONGEST = 1500
_GRAVE = ("ERROR", "CRITICAL", "FATAL")


def last_words(text: str) -> str:
    """Return the last error among JSON log lines, otherwise the last line; empty: no output.

    The first line may be truncated, since Kubernetes keeps only the end of a log.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return ""
    events = [event for line in lines if (event := _event(line)) is not None]
    # A traceback or library output after the last JSON event is more recent than the event.
    if events and _event(lines[-1]) is not None:
        errors = [event for event in events if str(event.get("level", "")).upper() in _GRAVE]
        return short(_said((errors or events)[-1]))
    return short(lines[-1])


def short(text: str, longest: int = _LONGEST) -> str:
    """Truncate a text in the middle, since both ends are informative."""
    if len(text) <= longest:
        return text
    half = (longest - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"


def _event(line: str) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return event if isinstance(event, dict) and "message" in event else None


def _said(event: dict[str, Any]) -> str:
    message = str(event["message"])
    exception_text = next(
        (str(event[key]) for key in ("exception", "traceback", "error") if event.get(key)), ""
    )
    last = exception_text.strip().splitlines()[-1:] if exception_text.strip() else []
    return ": ".join([message, *(line for line in last if line not in message)])
