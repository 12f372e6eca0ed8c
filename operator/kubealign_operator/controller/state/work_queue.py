"""The queue of jobs to reconcile: each key is queued at most once and processed by one worker at a time.

Level-triggered: a key means that something may have changed, not what.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

from kubealign.backoff import Backoff

K = TypeVar("K", bound=Hashable)

_MIN_RETRY_SECONDS = 0.05
_MAX_RETRY_SECONDS = 60.0


class WorkQueue(Generic[K]):
    """A work queue for one event loop. A key added while a worker processes it is queued again afterwards.

    Args:
        jitter: Largest fraction by which a backoff is shortened at random.
    """

    def __init__(self, jitter: float = 0.5) -> None:
        self._jitter = jitter
        self._ready: OrderedDict[K, None] = OrderedDict()
        self._has_ready = asyncio.Event()
        self._processing: set[K] = set()
        self._dirty: set[K] = set()
        self._backoffs: dict[K, Backoff] = {}
        self._timers: dict[K, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        """Return the number of keys that wait for a worker, without delayed ones."""
        return len(self._ready)

    def add(self, key: K) -> None:
        """Queue the key for the next free worker."""
        self._drop_timer(key)
        if key in self._processing:
            self._dirty.add(key)
        elif key not in self._ready:
            self._ready[key] = None
            self._has_ready.set()

    def add_after(self, key: K, seconds: float) -> None:
        """Queue the key after a delay, unless it is queued earlier. The earliest time wins."""
        loop = asyncio.get_running_loop()
        timer = self._timers.get(key)
        if timer is not None and timer.when() <= loop.time() + seconds:
            return
        self._drop_timer(key)
        self._timers[key] = loop.call_later(seconds, self._due, key)

    def retry(self, key: K, at_least: float = 0.0) -> float:
        """Queue the key after a backoff that doubles with each consecutive failure.

        The jitter keeps a thousand jobs that failed together from retrying together.

        Returns:
            The delay in seconds.
        """
        if key not in self._backoffs:
            self._backoffs[key] = Backoff(_MIN_RETRY_SECONDS, _MAX_RETRY_SECONDS, self._jitter)
        seconds = self._backoffs[key].next_delay(at_least)
        self.add_after(key, seconds)
        return seconds

    def forget(self, key: K) -> None:
        """Reset the backoff of the key."""
        self._backoffs.pop(key, None)

    async def get(self) -> K:
        """Return the key that has waited longest; no other worker gets it before `done`."""
        while not self._ready:
            self._has_ready.clear()
            await self._has_ready.wait()
        key, _ = self._ready.popitem(last=False)
        self._processing.add(key)
        # This reconcile also serves a later request: the planner requests a requeue again if needed.
        self._drop_timer(key)
        return key

    def done(self, key: K) -> None:
        """Mark the key as processed."""
        self._processing.discard(key)
        if key in self._dirty:
            self._dirty.discard(key)
            self.add(key)

    def _due(self, key: K) -> None:
        self._timers.pop(key, None)
        self.add(key)

    def _drop_timer(self, key: K) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
