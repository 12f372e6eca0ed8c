"""Backoff before a crashed process is restarted, on one machine and in a cluster."""

FIRST_SECONDS = 0.5
LONGEST_SECONDS = 30.0
HEALTHY_SECONDS = 60.0
_DOUBLINGS = 16


def restart_delay(restarts: int, healthy_seconds: float) -> float:
    """Return seconds before a restart: 0.5, 1, 2, ... 30; reset to 0.5 after a minute of healthy running.

    Args:
        restarts: Consecutive restarts, including this one.
        healthy_seconds: Time for which the process was healthy.
    """
    if healthy_seconds >= HEALTHY_SECONDS:
        return FIRST_SECONDS
    return float(min(FIRST_SECONDS * 2 ** min(max(restarts - 1, 0), _DOUBLINGS), LONGEST_SECONDS))
