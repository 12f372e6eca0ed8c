"""Restart backoff of a process that keeps dying."""

from kubealign.backoff import RESET_AFTER_SECONDS, restart_delay


class RestartBackoff:
    """Delays of 0.5, 1, 2, ... 30 seconds, reset after a minute of healthy running."""

    def __init__(self) -> None:
        self._restarts = 0

    def next_delay(self, healthy_seconds: float) -> float:
        """Return the seconds to wait before the next restart.

        Args:
            healthy_seconds: Time for which the process was healthy before it died.
        """
        if healthy_seconds >= RESET_AFTER_SECONDS:
            self._restarts = 0
        self._restarts += 1
        return restart_delay(self._restarts, 0.0)
