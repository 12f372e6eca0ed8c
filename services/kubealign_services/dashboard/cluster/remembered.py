"""A cache with a time to live that merges concurrent requests for the same key."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Answer = TypeVar("Answer")


class Remembered(Generic[Key, Answer]):
    """A least recently used cache with `max_entries` entries. Failures are not cached: the next request tries
    again.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._held: OrderedDict[Key, tuple[Answer, float]] = OrderedDict()
        self._asked: dict[Key, asyncio.Task[Answer]] = {}

    def __len__(self) -> int:
        return len(self._held)

    def held(self, key: Key) -> Answer | None:
        """Return the cached value; None: absent or expired."""
        held = self._held.get(key)
        if held is None or self._clock() >= held[1]:
            return None
        self._held.move_to_end(key)
        return held[0]

    def keep(self, key: Key, answer: Answer, seconds: float) -> None:
        """Cache the value for this many seconds."""
        if seconds <= 0:
            return
        self._held[key] = (answer, self._clock() + seconds)
        self._held.move_to_end(key)
        while len(self._held) > self._most:
            self._held.popitem(last=False)

    async def get(self, key: Key, ask: Callable[[], Awaitable[tuple[Answer, float]]]) -> Answer:
        """Return the cached value, or call `ask`, which returns a value and its time to live in seconds."""
        value = self.held(key)
        if value is not None:
            return value
        task = self._asked.get(key)
        if task is None:
            task = self._asked[key] = asyncio.create_task(self._ask(key, ask))
            task.add_done_callback(_looked_at)
        # The first waiter may be cancelled; the others still need the value.
        return await asyncio.shield(task)

    async def _ask(self, key: Key, ask: Callable[[], Awaitable[tuple[Answer, float]]]) -> Answer:
        try:
            value, seconds = await ask()
        finally:
            del self._asked[key]
        self.keep(key, value, seconds)
        return value


def _looked_at(task: asyncio.Task[Answer]) -> None:
    """Retrieve the exception of a task that nobody awaits any more, so that the event loop does not log it.
    """
    if not task.cancelled():
        task.exception()
