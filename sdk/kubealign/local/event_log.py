"""What happened to a run, a JSON line each: events.jsonl."""

import json
import os
import time
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError


class EventType(StrEnum):
    """As Kubernetes has them."""

    NORMAL = "Normal"
    WARNING = "Warning"


class RunEvent(BaseModel):
    """One thing that happened. `time`: seconds since the epoch."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    time: float
    type: EventType
    #: Why it is told, in one CamelCase word.
    reason: str
    message: str

    @property
    def at(self) -> datetime:
        return datetime.fromtimestamp(self.time, UTC)


class EventLog:
    """Several processes may write to it: each event is one append."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def tell(self, reason: str, message: str, type_: EventType = EventType.NORMAL) -> None:
        """Add an event. One that cannot be written is left out: a disk that is full ends the run by itself,
        and a folder that is gone has no more events."""
        event = {"time": time.time(), "type": type_, "reason": reason, "message": message}
        try:
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError:
            return
        try:
            os.write(descriptor, (json.dumps(event) + "\n").encode())
        except OSError:
            return
        finally:
            os.close(descriptor)

    def read(self) -> list[RunEvent]:
        """Oldest first; lines that were cut off are left out."""
        try:
            lines = self._path.read_bytes().splitlines()
        except FileNotFoundError:
            return []
        found = []
        for line in lines:
            try:
                found.append(RunEvent.model_validate_json(line))
            except ValidationError:
                continue
        return found
