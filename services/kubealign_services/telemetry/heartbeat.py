"""Heartbeats of a process, written to the read model."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from kubealign_services.telemetry.read_model_writer import ReadModelWriter

PERIOD_SECONDS = 5.0

#: Returns the fields of a process: version, running, waiting, ...
HeartbeatFields = Callable[[], Mapping[str, Any]]


class Heartbeat:
    """Sends heartbeats while `run()` is open.

    A blocked event loop stops the heartbeats, which marks the process as unhealthy.
    """

    def __init__(
        self,
        read_model: ReadModelWriter,
        process: str,
        role: str,
        period: float = PERIOD_SECONDS,
        common: HeartbeatFields = dict,
    ) -> None:
        """Create the heartbeat.

        Args:
            common: Fields of every process; a role's field of the same name takes precedence.
        """
        self._read_model = read_model
        self._process = process
        self._role = role
        self._period = period
        self._common_fields = common
        self._fields: HeartbeatFields = dict
        self._parts: list[Heartbeat] = []
        self._parent: Heartbeat | None = None

    def sub_heartbeat(self) -> "Heartbeat":
        """Return the heartbeat of another part of the same process.

        The part's fields are sent with these heartbeats; this part's fields take precedence.
        """
        part = Heartbeat(self._read_model, self._process, self._role, self._period)
        part._parent = self
        self._parts.append(part)
        return part

    def set_fields(self, describe: HeartbeatFields) -> None:
        """Add the fields that `describe` returns to every heartbeat from now on, and send one at once."""
        self._fields = describe
        self.send()

    def send(self) -> None:
        """Send one heartbeat."""
        if self._parent is not None:
            self._parent.send()
            return
        parts = {name: value for part in self._parts for name, value in part._fields().items()}
        values = {"role": self._role, "time": time.time(), **self._common_fields(), **parts, **self._fields()}
        self._read_model.set_heartbeat(self._process, values)

    @contextlib.asynccontextmanager
    async def run(self) -> AsyncIterator[None]:
        """Send heartbeats periodically while the context is open."""
        task = asyncio.create_task(self._send_periodically())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _send_periodically(self) -> None:
        while True:
            self.send()
            await asyncio.sleep(self._period)
