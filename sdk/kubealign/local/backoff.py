"""Restart backoff of a process that keeps dying."""

from kubealign.backoff import HEALTHY_SECONDS, restart_delay


class Backoff:
    """Delays of 0.5, 1, 2, ... 30 seconds, reset after a minute of healthy running."""

    def __init__(self) -> None:
        self._restarts = 0

    def after(self, healthy_seconds: float) -> float:
        """Return the seconds to wait before the next restart.

        Args:
            healthy_seconds: Time for which the process was healthy before it died.
        """
        if healthy_seconds >= HEALTHY_SECONDS:
            self._restarts = 0
        self._restarts += 1
        return restart_delay(self._restarts, 0.0)
