"""How long a process that dies again and again waits before it is started again."""

from kubealign.backoff import HEALTHY_SECONDS, restart_delay


class Backoff:
    """0.5, 1, 2, ... 30 seconds; from the start again after a minute of health."""

    def __init__(self) -> None:
        self._restarts = 0

    def after(self, healthy_seconds: float) -> float:
        """Seconds to wait, given how long the process was healthy before it died."""
        if healthy_seconds >= HEALTHY_SECONDS:
            self._restarts = 0
        self._restarts += 1
        return restart_delay(self._restarts, 0.0)
