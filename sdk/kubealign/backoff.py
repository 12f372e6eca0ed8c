"""Exponential backoff: delays before retries, and before the restart of a crashed process."""

import random
from dataclasses import dataclass, field

INITIAL_DELAY_SECONDS = 0.5
MAX_DELAY_SECONDS = 30.0
RESET_AFTER_SECONDS = 60.0
_MAX_DOUBLINGS = 16


@dataclass
class Backoff:
    """Delays that double with each retry, up to a maximum, until `reset` is called.

    Attributes:
        initial_seconds: Delay before the first retry.
        max_seconds: Upper limit of a delay.
        jitter: Largest fraction by which a delay is shortened at random, so that clients that lost the same
            server do not return at the same moment. 0: the delays are exact.
    """

    initial_seconds: float
    max_seconds: float
    jitter: float = 0.5
    _retries: int = field(default=0, init=False)

    def next_delay(self, at_least: float = 0.0) -> float:
        """Return seconds before the next retry.

        Args:
            at_least: Lower limit, such as a server's Retry-After; the jitter is added to it.
        """
        delay = _doubled(self.initial_seconds, self._retries, self.max_seconds)
        self._retries += 1
        return max(at_least, delay * (1.0 - self.jitter)) + random.uniform(0.0, delay * self.jitter)

    def reset(self) -> None:
        """Start again with the initial delay, after a success."""
        self._retries = 0


def restart_backoff() -> Backoff:
    """Return the backoff of a process that crashed: delays of 0.5, 1, 2, ... 30 seconds, without jitter."""
    return Backoff(INITIAL_DELAY_SECONDS, MAX_DELAY_SECONDS, jitter=0.0)


def restart_delay(restarts: int, healthy_seconds: float) -> float:
    """Return seconds before a restart: 0.5, 1, 2, ... 30; reset to 0.5 after a minute of healthy running.

    Args:
        restarts: Consecutive restarts, including this one.
        healthy_seconds: Time for which the process was healthy.
    """
    if healthy_seconds >= RESET_AFTER_SECONDS:
        return INITIAL_DELAY_SECONDS
    return _doubled(INITIAL_DELAY_SECONDS, max(restarts - 1, 0), MAX_DELAY_SECONDS)


def _doubled(initial_seconds: float, doublings: int, max_seconds: float) -> float:
    return float(min(initial_seconds * 2 ** min(doublings, _MAX_DOUBLINGS), max_seconds))
