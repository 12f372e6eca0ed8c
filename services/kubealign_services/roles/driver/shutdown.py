"""Shutdown of the driver within its grace period. A step that cannot be verified and saved in that time is
dropped; the last checkpoint remains valid.
"""

import asyncio

from kubealign_services.roles.driver.errors import ShutdownRequested

# Part of the grace period that is reserved to close the message bus, the server and the logs after the last
# checkpoint.
_CLOSING_FRACTION = 0.25
_CLOSING_SECONDS = 10.0


class ShutdownDeadline:
    """Deadline of a graceful shutdown.

    Args:
        stop: Set when the process is asked to stop.
        seconds: Grace period of the process, after which it is killed.
    """

    def __init__(self, stop: asyncio.Event, seconds: float) -> None:
        self.stop = stop
        self._seconds = seconds - min(_CLOSING_SECONDS, seconds * _CLOSING_FRACTION)
        self._expires_at: float | None = None

    async def wait_for_request(self) -> None:
        """Wait for a shutdown request. Raises ShutdownRequested."""
        await self.stop.wait()
        raise ShutdownRequested

    async def wait_for_expiry(self) -> None:
        """Sleep until the shutdown deadline. Raises ShutdownRequested."""
        await self.stop.wait()
        now = asyncio.get_running_loop().time()
        if self._expires_at is None:
            self._expires_at = now + self._seconds
        await asyncio.sleep(self._expires_at - now)
        raise ShutdownRequested
