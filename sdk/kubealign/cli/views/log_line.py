"""Formats log lines for a terminal: JSON events of the processes become text. Pure."""

import json
from datetime import datetime
from typing import Any

from rich.text import Text

from kubealign.cli.terminal import escape_control

_MAX_VALUE_CHARS = 80
_LEVEL_STYLES = {"warning": "yellow", "error": "red", "critical": "bold red"}
# Redundant fields: the process name precedes the line, and the others are the same in every line.
_HIDDEN_FIELDS = frozenset({"time", "level", "job", "role", "process", "message", "logger"})


def format_log_line(line: str) -> Text:
    """Return `23:12:10 warning: message  step=3` for an event, and other lines with escaped control
    characters.
    """
    event = _parse_event(line)
    if event is None:
        return Text(escape_control(line))
    level = str(event.get("level", "info"))
    line_text = Text.assemble((_time_of_day(event.get("time")), "dim"))
    if level not in ("info", "debug"):
        line_text.append(f"{escape_control(level)}: ", style=_LEVEL_STYLES.get(level, "yellow"))
    line_text.append(escape_control(str(event["message"])))
    for name, value in event.items():
        if name not in _HIDDEN_FIELDS:
            line_text.append(f"  {escape_control(name)}=", style="dim").append(
                escape_control(_format_value(value)), style="dim"
            )
    return line_text


def _format_value(value: Any) -> str:
    """Format a value; collections longer than a line are replaced by their number of entries."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict | list) and len(text) > _MAX_VALUE_CHARS:
        return f"({len(value)} entries)"
    return text


def _parse_event(line: str) -> dict[str, Any] | None:
    if not line.startswith("{"):
        return None
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and "message" in event else None


def _time_of_day(time: object) -> str:
    """Return the local time of day and a blank; empty without a valid time."""
    try:
        return datetime.fromisoformat(str(time)).astimezone().strftime("%H:%M:%S ")
    except ValueError:
        return ""
