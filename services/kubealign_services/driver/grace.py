"""The time that the driver has from when it is told to stop. A step that cannot be proven and committed in
it is not committed: the last commit stays the truth."""

import asyncio

from kubealign_services.driver.failures import Stopping

# Of the process's grace period, for what closes after the last commit: the bus, the server, the logs.
_CLOSING_SHARE = 0.25
_CLOSING_SECONDS = 10.0


class Grace:
    """seconds: the process's grace period, after which it is ended from outside."""

    def __init__(self, stop: asyncio.Event, seconds: float) -> None:
        self.stop = stop
        self._seconds = seconds - min(_CLOSING_SECONDS, seconds * _CLOSING_SHARE)
        self._end: float | None = None

    async def told(self) -> None:
        """Wait to be told to stop. Raises Stopping."""
        await self.stop.wait()
        raise Stopping

    async def over(self) -> None:
        """Wait until what was begun before must be given up. Raises Stopping."""
        await self.stop.wait()
        now = asyncio.get_running_loop().time()
        if self._end is None:
            self._end = now + self._seconds
        await asyncio.sleep(self._end - now)
        raise Stopping
