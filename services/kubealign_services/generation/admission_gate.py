"""A gate that admits and counts work, and can be closed and drained."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class AdmissionGate:
    """Admits work while it is open and counts it until it is done. Starts open."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._idle = asyncio.Event()
        self._idle.set()
        #: Set while any work runs.
        self.busy = asyncio.Event()
        self._active_count = 0

    @property
    def idle(self) -> asyncio.Event:
        """Event that is set while no work runs."""
        return self._idle

    @asynccontextmanager
    async def enter(self) -> AsyncIterator[None]:
        """Wait until the gate is open; the block counts as work."""
        while not self._open.is_set():
            await self._open.wait()
        self._active_count += 1
        self._idle.clear()
        self.busy.set()
        try:
            yield
        finally:
            self._active_count -= 1
            if not self._active_count:
                self.busy.clear()
                self._idle.set()

    @asynccontextmanager
    async def close(self, *, drain: bool) -> AsyncIterator[None]:
        """Close the gate within the block, after any other closer has left: no new work starts.

        Args:
            drain: Wait until the running work is done before the block begins.
        """
        while not self._open.is_set():
            await self._open.wait()
        self._open.clear()
        try:
            if drain:
                await self._idle.wait()
            yield
        finally:
            self._open.set()
