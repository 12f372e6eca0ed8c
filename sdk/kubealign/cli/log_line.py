"""A line of a log for a person: the events of a job's processes, which are JSON, in words. Pure."""

import json
from datetime import datetime
from typing import Any

from rich.text import Text

from kubealign.cli.terminal import safe

_LONGEST = 80
_STYLES = {"warning": "yellow", "error": "red", "critical": "bold red"}
# Said already: the process's name stands before the line, and the others are the same in each.
_LEFT_OUT = frozenset({"time", "level", "job", "role", "process", "message", "logger"})


def told(line: str) -> Text:
    """`23:12:10 warning: what happened  step=3`; anything else as it is, control characters shown."""
    event = _event(line)
    if event is None:
        return Text(safe(line))
    level = str(event.get("level", "info"))
    made = Text.assemble((_clock(event.get("time")), "dim"))
    if level not in ("info", "debug"):
        made.append(f"{safe(level)}: ", style=_STYLES.get(level, "yellow"))
    made.append(safe(str(event["message"])))
    for name, value in event.items():
        if name not in _LEFT_OUT:
            made.append(f"  {safe(name)}=", style="dim").append(safe(_shown(value)), style="dim")
    return made


def _shown(value: Any) -> str:
    """Of what fills more than a line, such as all figures of a step, how much it is."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    if isinstance(value, dict | list) and len(text) > _LONGEST:
        return f"({len(value)} entries)"
    return text


def _event(line: str) -> dict[str, Any] | None:
    if not line.startswith("{"):
        return None
    try:
        held = json.loads(line)
    except ValueError:
        return None
    return held if isinstance(held, dict) and "message" in held else None


def _clock(time: object) -> str:
    """The time of day here, and a blank; empty where there is no time."""
    try:
        return datetime.fromisoformat(str(time)).astimezone().strftime("%H:%M:%S ")
    except ValueError:
        return ""
