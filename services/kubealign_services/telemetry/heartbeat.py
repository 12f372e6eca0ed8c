"""A sign of life of each process, in the read model."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

from kubealign_services.telemetry.read_model import ReadModel

PERIOD_SECONDS = 5.0

#: What a process says of itself: version, running, waiting, ...
Describe = Callable[[], Mapping[str, Any]]


class Heartbeat:
    """Beats while `beating()` is open. It stops when the event loop stands still: then the process is not
    well."""

    def __init__(
        self,
        read_model: ReadModel,
        process: str,
        role: str,
        period: float = PERIOD_SECONDS,
        common: Describe = dict,
    ) -> None:
        """common: what every process says; what its role says of the same name replaces it."""
        self._read_model = read_model
        self._process = process
        self._role = role
        self._period = period
        self._common = common
        self._describe: Describe = dict
        self._parts: list[Heartbeat] = []
        self._whole: Heartbeat | None = None

    def beside(self) -> "Heartbeat":
        """For another part of the same process: what that says goes with these beats, but for what is said
        here by the same name."""
        part = Heartbeat(self._read_model, self._process, self._role, self._period)
        part._whole = self
        self._parts.append(part)
        return part

    def describe(self, describe: Describe) -> None:
        """From now on each beat carries what `describe` returns; and one is sent at once."""
        self._describe = describe
        self.beat()

    def beat(self) -> None:
        """One beat."""
        if self._whole is not None:
            self._whole.beat()
            return
        others = {name: value for part in self._parts for name, value in part._describe().items()}
        values = {"role": self._role, "time": time.time(), **self._common(), **others, **self._describe()}
        self._read_model.heartbeat(self._process, values)

    @contextlib.asynccontextmanager
    async def beating(self) -> AsyncIterator[None]:
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
