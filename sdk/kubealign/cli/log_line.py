"""Formats log lines for a terminal: JSON events of the processes become text. Pure."""

import json
from datetime import datetime
from typing import Any

from rich.text import Text

from kubealign.cli.terminal import safe

_LONGEST = 80
_STYLES = {"warning": "yellow", "error": "red", "critical": "bold red"}
# Redundant fields: the process name precedes the line, and the others are the same in every line.
_LEFT_OUT = frozenset({"time", "level", "job", "role", "process", "message", "logger"})


def told(line: str) -> Text:
    """Return `23:12:10 warning: message  step=3` for an event, and other lines with escaped control
    characters.
    """
    event = _event(line)
    if event is None:
        return Text(safe(line))
    level = str(event.get("level", "info"))
    line_text = Text.assemble((_clock(event.get("time")), "dim"))
    if level not in ("info", "debug"):
        line_text.append(f"{safe(level)}: ", style=_STYLES.get(level, "yellow"))
    line_text.append(safe(str(event["message"])))
    for name, value in event.items():
        if name not in _LEFT_OUT:
            line_text.append(f"  {safe(name)}=", style="dim").append(safe(_shown(value)), style="dim")
    return line_text


def _shown(value: Any) -> str:
    """Format a value; collections longer than a line are replaced by their number of entries."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict | list) and len(text) > _LONGEST:
        return f"({len(value)} entries)"
    return text


def _event(line: str) -> dict[str, Any] | None:
    if not line.startswith("{"):
        return None
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and "message" in event else None


def _clock(time: object) -> str:
    """Return the local time of day and a blank; empty without a valid time."""
    try:
        return datetime.fromisoformat(str(time)).astimezone().strftime("%H:%M:%S ")
    except ValueError:
        return ""
