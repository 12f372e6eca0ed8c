"""Event log of a run: one JSON line per event in events.jsonl."""

import json
import os
import time
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError


class RunEventType(StrEnum):
    """Event types of Kubernetes."""

    NORMAL = "Normal"
    WARNING = "Warning"


class RunEvent(BaseModel):
    """One event of a run. `time`: seconds since the epoch."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    time: float
    type: RunEventType
    #: Reason of the event in one CamelCase word.
    reason: str
    message: str

    @property
    def timestamp(self) -> datetime:
        return datetime.fromtimestamp(self.time, UTC)


class EventLog:
    """Append-only log that several processes may write to: each event is one append."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, reason: str, message: str, type_: RunEventType = RunEventType.NORMAL) -> None:
        """Append an event.

        An event that cannot be written is dropped: the display shows that the disk is full, and a deleted
        folder needs no events.
        """
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
        """Return the events, oldest first; truncated lines are skipped."""
        try:
            lines = self._path.read_bytes().splitlines()
        except FileNotFoundError:
            return []
        events = []
        for line in lines:
            try:
                events.append(RunEvent.model_validate_json(line))
            except ValidationError:
                continue
        return events
