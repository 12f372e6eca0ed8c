"""Backoff before a crashed process is restarted, on one machine and in a cluster."""

INITIAL_DELAY_SECONDS = 0.5
MAX_DELAY_SECONDS = 30.0
RESET_AFTER_SECONDS = 60.0
_MAX_DOUBLINGS = 16


def restart_delay(restarts: int, healthy_seconds: float) -> float:
    """Return seconds before a restart: 0.5, 1, 2, ... 30; reset to 0.5 after a minute of healthy running.

    Args:
        restarts: Consecutive restarts, including this one.
        healthy_seconds: Time for which the process was healthy.
    """
    if healthy_seconds >= RESET_AFTER_SECONDS:
        return INITIAL_DELAY_SECONDS
    return float(
        min(INITIAL_DELAY_SECONDS * 2 ** min(max(restarts - 1, 0), _MAX_DOUBLINGS), MAX_DELAY_SECONDS)
    )
