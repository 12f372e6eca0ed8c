"""Watchdog that ends the process within the grace period, whatever hangs."""

import logging
import os
import sys
import threading
from collections.abc import Callable
from types import CoroutineType
from typing import Any

log = logging.getLogger(__name__)


class ExitWatchdog:
    """Exits the process after a timeout from a thread of its own, so a blocked event loop does not delay the
    exit.
    """

    def __init__(self) -> None:
        self._timer: threading.Timer | None = None

    def start(self, seconds: float, code: int, waits_for: Callable[[], str]) -> None:
        """Exit with `code` after `seconds`, and log what the process waited for, unless it has ended by then.

        Only the first call has an effect.
        """
        if self._timer is None:
            self._timer = threading.Timer(seconds, _force_exit, (seconds, code, waits_for))
            self._timer.daemon = True
            self._timer.start()

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _force_exit(seconds: float, code: int, waits_for: Callable[[], str]) -> None:
    """Log the pending work and exit."""
    extra = {"grace_seconds": seconds, "waited_for": waits_for()}
    log.error("did not end within the grace period", extra=extra)
    exit_immediately(code)


def exit_immediately(code: int) -> None:
    """Exit without waiting for any thread."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def awaited_functions(coroutine: Any) -> str:
    """Return the functions that a suspended coroutine is in, outermost first, as `serve > pull > wait`."""
    names = []
    while isinstance(coroutine, CoroutineType):
        names.append(coroutine.__qualname__)
        coroutine = coroutine.cr_await
    return " > ".join(names)
