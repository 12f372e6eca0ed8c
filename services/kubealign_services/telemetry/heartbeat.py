"""Heartbeats of a process, written to the read model."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from kubealign_services.telemetry.read_model import ReadModel

PERIOD_SECONDS = 5.0

#: Returns the fields of a process: version, running, waiting, ...
Describe = Callable[[], Mapping[str, Any]]


class Heartbeat:
    """Sends heartbeats while `run()` is open. A blocked event loop stops the heartbeats, which marks the
    process as unhealthy.
    """

    def __init__(
        self,
        read_model: ReadModel,
        process: str,
        role: str,
        period: float = PERIOD_SECONDS,
        common: Describe = dict,
    ) -> None:
        """Create the heartbeat.

        Args:
            common: Fields of every process; a role's field of the same name takes precedence.
        """
        self._read_model = read_model
        self._process = process
        self._role = role
        self._period = period
        self._common = common
        self._describe: Describe = dict
        self._parts: list[Heartbeat] = []
        self._whole: Heartbeat | None = None

    def beside(self) -> "Heartbeat":
        """Return the heartbeat of another part of the same process.

        The part's fields are sent with these heartbeats; this part's fields take precedence.
        """
        part = Heartbeat(self._read_model, self._process, self._role, self._period)
        part._whole = self
        self._parts.append(part)
        return part

    def describe(self, describe: Describe) -> None:
        """Add the fields that `describe` returns to every heartbeat from now on, and send one at once."""
        self._describe = describe
        self.beat()

    def beat(self) -> None:
        """Send one heartbeat."""
        if self._whole is not None:
            self._whole.beat()
            return
        parts = {name: value for part in self._parts for name, value in part._describe().items()}
        values = {"role": self._role, "time": time.time(), **self._common(), **parts, **self._describe()}
        self._read_model.heartbeat(self._process, values)

    @contextlib.asynccontextmanager
    async def beating(self) -> AsyncIterator[None]:
        """Send heartbeats periodically while the context is open."""
        task = asyncio.create_task(self._go_on())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _go_on(self) -> None:
        while True:
            self.beat()
            await asyncio.sleep(self._period)
