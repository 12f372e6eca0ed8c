"""Time budget of a measurement."""

import time
from collections.abc import Callable


class TimeBudget:
    """A time budget that starts now."""

    def __init__(self, seconds: float) -> None:
        self._end = time.perf_counter() + seconds

    @property
    def seconds_left(self) -> float:
        """Seconds left; negative once the budget is spent."""
        return self._end - time.perf_counter()


def measure_seconds(action: Callable[[], object]) -> float:
    """Return the seconds that the action takes."""
    started = time.perf_counter()
    action()
    return time.perf_counter() - started
