"""Circuit breaker: calls of a server that fails one after another wait, and one at a time tries it."""

import asyncio
import time
from collections.abc import Callable

#: Failures in a row after which calls wait.
MAX_CONSECUTIVE_FAILURES = 5
#: Seconds before the first trial; they double up to the last.
FIRST_PAUSE, LAST_PAUSE = 1.0, 30.0


class CircuitOpen(Exception):
    """The server has failed for as long as a call may wait."""


class CircuitBreaker:
    """Counts the outcomes of the calls of one server. Used on one event loop.

    Args:
        clock: Time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures = 0
        self._pause = FIRST_PAUSE
        self._next_trial = 0.0
        self._is_tried = False
        self._changed = asyncio.Condition()

    @property
    def is_open(self) -> bool:
        """True while calls wait."""
        return self._failures >= MAX_CONSECUTIVE_FAILURES

    async def enter(self, seconds: float) -> None:
        """Wait until a call is allowed: at once, unless the server fails. Follow it by `leave`.

        Raises CircuitOpen after `seconds`.
        """
        deadline = self._clock() + seconds
        async with self._changed:
            while self.is_open:
                now = self._clock()
                if not self._is_tried and now >= self._next_trial:
                    self._is_tried = True
                    return
                if now >= deadline:
                    raise CircuitOpen(
                        f"{self._failures} failures in a row, and none but failures for {seconds:g} s"
                    )
                until = deadline if self._is_tried else min(deadline, self._next_trial)
                await self._wait(until - now)

    async def leave(self, *, succeeded: bool | None) -> None:
        """Record the outcome of a call; None: it was cancelled."""
        async with self._changed:
            self._is_tried = False
            if succeeded:
                self._failures, self._pause = 0, FIRST_PAUSE
            elif succeeded is not None:
                self._failures += 1
                if self.is_open:
                    self._next_trial = self._clock() + self._pause
                    self._pause = min(2 * self._pause, LAST_PAUSE)
            self._changed.notify_all()

    async def _wait(self, seconds: float) -> None:
        """Wait for the outcome of a call, at most some seconds."""
        try:
            await asyncio.wait_for(self._changed.wait(), seconds)
        except TimeoutError:
            return
