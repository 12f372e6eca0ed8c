"""Last log lines of a process for error messages."""

import json
from pathlib import Path

_LINES = 12
_BYTES = 16_384
_LINE_CHARACTERS = 300


def read_log_tail(log: Path, start: int = 0) -> str:
    """Return the last lines written after byte `start`, indented; JSON events as level and message."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(start, size - _BYTES))
            text = file.read().decode(errors="replace")
    except OSError as error:
        return f"  (its log cannot be read: {error})"
    lines = [line for entry in text.splitlines() for line in _format_entry(entry)]
    return "\n".join(f"  {line[:_LINE_CHARACTERS]}" for line in lines[-_LINES:]) or "  (it wrote nothing)"


def _format_entry(entry: str) -> list[str]:
    try:
        event = json.loads(entry)
    except json.JSONDecodeError:
        return [entry] if entry.strip() else []
    if not isinstance(event, dict) or "message" not in event:
        return [entry]
    summary = " ".join(str(event[key]) for key in ("level", "message") if key in event)
    error = next((str(event[key]) for key in ("exception", "traceback", "error") if event.get(key)), "")
    return [summary, *error.splitlines()]
