"""A cache with a time to live that merges concurrent requests for the same key."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

CacheKey = TypeVar("CacheKey", bound=Hashable)
CacheValue = TypeVar("CacheValue")


class TTLCache(Generic[CacheKey, CacheValue]):
    """A least recently used cache with `max_entries` entries.

    Failures are not cached: the next request tries again.
    """

    def __init__(self, max_entries: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_entries = max_entries
        self._clock = clock
        self._entries: OrderedDict[CacheKey, tuple[CacheValue, float]] = OrderedDict()
        self._pending: dict[CacheKey, asyncio.Task[CacheValue]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def peek(self, key: CacheKey) -> CacheValue | None:
        """Return the cached value; None: absent or expired."""
        entry = self._entries.get(key)
        if entry is None or self._clock() >= entry[1]:
            return None
        self._entries.move_to_end(key)
        return entry[0]

    def put(self, key: CacheKey, answer: CacheValue, seconds: float) -> None:
        """Cache the value for this many seconds."""
        if seconds <= 0:
            return
        self._entries[key] = (answer, self._clock() + seconds)
        self._entries.move_to_end(key)
        while len(self._entries) > self._max_entries:
            self._entries.popitem(last=False)

    async def get(
        self, key: CacheKey, fetch: Callable[[], Awaitable[tuple[CacheValue, float]]]
    ) -> CacheValue:
        """Return the cached value, or call `fetch`, which returns a value and its time to live in seconds."""
        value = self.peek(key)
        if value is not None:
            return value
        task = self._pending.get(key)
        if task is None:
            task = self._pending[key] = asyncio.create_task(self._fetch(key, fetch))
            task.add_done_callback(_consume_exception)
        # The first waiter may be cancelled; the others still need the value.
        return await asyncio.shield(task)

    async def _fetch(
        self, key: CacheKey, ask: Callable[[], Awaitable[tuple[CacheValue, float]]]
    ) -> CacheValue:
        try:
            value, seconds = await ask()
        finally:
            del self._pending[key]
        self.put(key, value, seconds)
        return value


def _consume_exception(task: asyncio.Task[CacheValue]) -> None:
    """Retrieve the exception of a task that nobody awaits, so that the event loop does not log it."""
    if not task.cancelled():
        task.exception()
