"""Busy share and rates of a process, measured from one heartbeat to the next."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Clock = Callable[[], float]


class BusyShare:
    """Share of the time spent in `measure` blocks, from 0 to 1.

    Overlapping blocks of several threads count once.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._last_read = clock()
        self._busy_seconds = 0.0
        self._since = 0.0
        self._depth = 0
        self._lock = threading.Lock()

    @contextmanager
    def measure(self) -> Iterator[None]:
        """Count the time of the block as busy."""
        with self._lock:
            if self._depth == 0:
                self._since = self._clock()
            self._depth += 1
        try:
            yield
        finally:
            with self._lock:
                self._depth -= 1
                if self._depth == 0:
                    self._busy_seconds += self._clock() - self._since

    def read_and_reset(self) -> float:
        """Return the busy share since the last call; a block in progress counts up to now."""
        with self._lock:
            now = self._clock()
            if self._depth:
                self._busy_seconds += now - self._since
                self._since = now
            elapsed, spent = now - self._last_read, self._busy_seconds
            self._last_read, self._busy_seconds = now, 0.0
        return min(1.0, spent / elapsed) if elapsed > 0 else 0.0


class Rate:
    """Growth rate of a total."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._last_read = clock()
        self._total = 0.0

    def per_second(self, total: float) -> float:
        """Return the growth per second since the last call."""
        now = self._clock()
        elapsed, grown = now - self._last_read, total - self._total
        self._last_read, self._total = now, total
        return grown / elapsed if elapsed > 0 else 0.0
