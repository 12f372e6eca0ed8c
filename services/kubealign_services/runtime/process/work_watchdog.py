"""Watchdog of the work on a process's compute thread: a call that exceeds its deadline ends the process.

A health endpoint shows that the event loop runs. It does not show that the compute thread makes progress: a
CUDA call, a read from a hung file system or a loop in C may never return. Nothing in the process can end
such a thread, so the process ends, with the stacks of its threads in the log, and is started again.
"""

import faulthandler
import itertools
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kubealign_services.runtime.process.exit_watchdog import exit_immediately

log = logging.getLogger(__name__)

_TICK_SECONDS = 1.0
#: Exit code of a process that the watchdog has ended: a crash, after which it is started again.
OVERDUE_EXIT_CODE = 1


@dataclass
class _WatchedCall:
    name: str
    limit: float
    elapsed: float = 0.0


class WorkWatchdog:
    """Ends the process when a watched call runs longer than its limit.

    Only time in which the watchdog itself ran is counted: a process that was stopped by a signal, or a
    machine that was suspended, goes on with the time that was left.
    """

    def __init__(
        self,
        tick_seconds: float = _TICK_SECONDS,
        on_overdue: Callable[[str], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Configure the watchdog; its thread starts with the first watched call.

        Args:
            tick_seconds: Seconds between two checks.
            on_overdue: Called on the watchdog's thread with the description of the call; by default the
                process exits.
        """
        self._tick_seconds = tick_seconds
        self._on_overdue = on_overdue or _dump_and_exit
        self._clock = clock
        self._numbers = itertools.count()
        self._calls: dict[int, _WatchedCall] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @contextmanager
    def limit(self, name: str, seconds: float) -> Iterator[None]:
        """Watch the block, on any thread: the process ends when it takes longer than `seconds`."""
        number = next(self._numbers)
        with self._lock:
            self._calls[number] = _WatchedCall(name, seconds)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="work watchdog", daemon=True)
                self._thread.start()
        try:
            yield
        finally:
            with self._lock:
                del self._calls[number]

    @property
    def overdue_call(self) -> str:
        """Description of a watched call that has exceeded its limit; empty: there is none."""
        with self._lock:
            overdue = (call for call in self._calls.values() if call.elapsed > call.limit)
            return next((_describe(call) for call in overdue), "")

    def add_elapsed(self, seconds: float) -> None:
        """Add the time since the last check to all watched calls, at most twice the time between checks."""
        with self._lock:
            for call in self._calls.values():
                call.elapsed += min(seconds, 2 * self._tick_seconds)

    def _run(self) -> None:
        last_check = self._clock()
        pause = threading.Event()
        while True:
            pause.wait(self._tick_seconds)
            now = self._clock()
            self.add_elapsed(now - last_check)
            last_check = now
            if overdue := self.overdue_call:
                self._on_overdue(overdue)


def _describe(call: _WatchedCall) -> str:
    return f"{call.name} has run for more than its limit of {call.limit:g} s"


def _dump_and_exit(overdue: str) -> None:
    """Log the call and the stacks of all threads, then exit."""
    log.error("%s: the process ends and is started again; the stacks of its threads follow", overdue)
    sys.stdout.flush()
    faulthandler.dump_traceback(sys.stderr, all_threads=True)
    exit_immediately(OVERDUE_EXIT_CODE)
