"""How long a process that died waits before it is started again: the same on one machine and in a cluster."""

FIRST_SECONDS = 0.5
LONGEST_SECONDS = 30.0
HEALTHY_SECONDS = 60.0
_DOUBLINGS = 16


def restart_delay(restarts: int, healthy_seconds: float) -> float:
    """Seconds: 0.5, 1, 2, ... 30 before the first, second, third ... restart; 0.5 after a minute of health.
    `restarts`: in a row, this one included."""
    if healthy_seconds >= HEALTHY_SECONDS:
        return FIRST_SECONDS
    return float(min(FIRST_SECONDS * 2 ** min(max(restarts - 1, 0), _DOUBLINGS), LONGEST_SECONDS))
