"""The end of a process, which comes in time whatever hangs."""

import logging
import os
import sys
import threading
from collections.abc import Callable
from types import CoroutineType
from typing import Any

log = logging.getLogger(__name__)


class Deadline:
    """Ends the process after so many seconds, from a thread of its own: a stuck event loop does not stop
    it."""

    def __init__(self) -> None:
        self._timer: threading.Timer | None = None

    def start(self, seconds: float, code: int, waits_for: Callable[[], str]) -> None:
        """The process exits with `code`, and logs what it waited for, unless it has ended by itself by then.

        Only the first start counts."""
        if self._timer is None:
            self._timer = threading.Timer(seconds, _give_up, (seconds, code, waits_for))
            self._timer.daemon = True
            self._timer.start()

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


def _give_up(seconds: float, code: int, waits_for: Callable[[], str]) -> None:
    extra = {"grace_seconds": seconds, "waited_for": waits_for()}
    log.error("did not end within the grace period", extra=extra)
    end_now(code)


def end_now(code: int) -> None:
    """Exit without waiting for any thread."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def awaited(coroutine: Any) -> str:
    """The functions that a suspended coroutine is in, outermost first, as `serve > pull > wait`."""
    names = []
    while isinstance(coroutine, CoroutineType):
        names.append(coroutine.__qualname__)
        coroutine = coroutine.cr_await
    return " > ".join(names)
