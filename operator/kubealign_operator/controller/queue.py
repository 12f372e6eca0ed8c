"""Which jobs to look at next: each at most once in the queue, and by one worker at a time.

Level-triggered: a key says that something may have changed, never what.
"""

import asyncio
import random
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_FIRST_SECONDS = 0.05
_LONGEST_SECONDS = 60.0
_DOUBLINGS = 16


class WorkQueue(Generic[K]):
    """Used from one event loop. What is added while a worker has it comes back once the worker is done."""

    def __init__(self, chance: Callable[[], float] = random.random) -> None:
        self._chance = chance
        self._ready: OrderedDict[K, None] = OrderedDict()
        self._news = asyncio.Event()
        self._working: set[K] = set()
        self._again: set[K] = set()
        self._failures: dict[K, int] = {}
        self._timers: dict[K, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        """Those that wait for a worker; those that wait for a time are not among them."""
        return len(self._ready)

    def add(self, key: K) -> None:
        """Look at it as soon as a worker is free."""
        self._drop_timer(key)
        if key in self._working:
            self._again.add(key)
        elif key not in self._ready:
            self._ready[key] = None
            self._news.set()

    def add_after(self, key: K, seconds: float) -> None:
        """Look at it then, unless it is looked at sooner anyway. The soonest time counts."""
        loop = asyncio.get_running_loop()
        held = self._timers.get(key)
        if held is not None and held.when() <= loop.time() + seconds:
            return
        self._drop_timer(key)
        self._timers[key] = loop.call_later(seconds, self._due, key)

    def retry(self, key: K, at_least: float = 0.0) -> float:
        """Look at it again after a pause that doubles with each failure in a row; returns the seconds.

        The jitter keeps a thousand jobs that failed together from coming back together."""
        failures = self._failures.get(key, 0)
        self._failures[key] = min(failures + 1, _DOUBLINGS)
        longest: float = min(_FIRST_SECONDS * 2**failures, _LONGEST_SECONDS)
        seconds = max(at_least, longest / 2) + self._chance() * longest / 2
        self.add_after(key, seconds)
        return seconds

    def forget(self, key: K) -> None:
        """It went well: the next failure is its first."""
        self._failures.pop(key, None)

    async def get(self) -> K:
        """The one that waits longest; no other worker gets it before `done`."""
        while not self._ready:
            self._news.clear()
            await self._news.wait()
        key, _ = self._ready.popitem(last=False)
        self._working.add(key)
        # A look now serves what a later one was wanted for: who still wants it says so again.
        self._drop_timer(key)
        return key

    def done(self, key: K) -> None:
        """The worker is through with it."""
        self._working.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def _due(self, key: K) -> None:
        self._timers.pop(key, None)
        self.add(key)

    def _drop_timer(self, key: K) -> None:
        timer = self._timers.pop(key, None)
        if timer is not None:
            timer.cancel()
