"""Work that is let in while a gate is open, and counted until it is done."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Gate:
    """Open at first."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._idle = asyncio.Event()
        self._idle.set()
        #: Set while anything runs.
        self.busy = asyncio.Event()
        self._inside = 0

    @property
    def idle(self) -> asyncio.Event:
        """Set while nothing runs."""
        return self._idle

    @asynccontextmanager
    async def entered(self) -> AsyncIterator[None]:
        """Wait until the gate is open; the block counts as work."""
        while not self._open.is_set():
            await self._open.wait()
        self._inside += 1
        self._idle.clear()
        self.busy.set()
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self.busy.clear()
                self._idle.set()

    @asynccontextmanager
    async def closed(self, *, drained: bool) -> AsyncIterator[None]:
        """Wait until nobody else has closed it; nothing starts until the block ends. drained: the block
        begins once nothing runs either."""
        while not self._open.is_set():
            await self._open.wait()
        self._open.clear()
        try:
            if drained:
                await self._idle.wait()
            yield
        finally:
            self._open.set()
