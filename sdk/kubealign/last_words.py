"""What a process said last, from the end of its log or its termination file."""

import json
from typing import Any

_LONGEST = 1500
_GRAVE = ("ERROR", "CRITICAL", "FATAL")


def last_words(text: str) -> str:
    """The last error among JSON log lines, else the last line; empty: it said nothing.

    The first line may be cut: Kubernetes keeps the end of a log only."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return ""
    events = [event for line in lines if (event := _event(line)) is not None]
    # A traceback or a library's own words after the last event are younger than it.
    if events and _event(lines[-1]) is not None:
        grave = [event for event in events if str(event.get("level", "")).upper() in _GRAVE]
        return short(_said((grave or events)[-1]))
    return short(lines[-1])


def short(text: str, longest: int = _LONGEST) -> str:
    """Cut in the middle: both ends tell more."""
    if len(text) <= longest:
        return text
    half = (longest - 5) // 2
    return f"{text[:half]} ... {text[-half:]}"


def _event(line: str) -> dict[str, Any] | None:
    try:
        held = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return held if isinstance(held, dict) and "message" in held else None


def _said(event: dict[str, Any]) -> str:
    said = str(event["message"])
    raised = next((str(event[key]) for key in ("exception", "traceback", "error") if event.get(key)), "")
    last = raised.strip().splitlines()[-1:] if raised.strip() else []
    return ": ".join([said, *(line for line in last if line not in said)])
