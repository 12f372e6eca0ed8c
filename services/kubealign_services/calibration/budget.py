"""Seconds that a measurement may take."""

import time
from collections.abc import Callable


class Budget:
    """From now on."""

    def __init__(self, seconds: float) -> None:
        self._end = time.perf_counter() + seconds

    @property
    def left(self) -> float:
        return self._end - time.perf_counter()


def timed(action: Callable[[], object]) -> float:
    """Seconds."""
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun
