"""Alternates the machine between concurrent sides, so that changes of its speed affect all sides equally."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

_WAIT_SECONDS = 60.0
_LOOK_SECONDS = 0.05


@dataclass(frozen=True)
class Turn:
    """A period in which a side had the machine, in seconds since the epoch."""

    side: int
    begin: float
    end: float


def seconds_of(turns: Sequence[Turn], side: int, begin: float, end: float) -> float:
    """Return for how many seconds between `begin` and `end` the side had the machine."""
    return sum(max(0.0, min(end, turn.end) - max(begin, turn.begin)) for turn in turns if turn.side == side)


class Turns:
    """A context manager that treats each child process started within it, with all its descendants, as a
    side, in the order of their start. All sides except the one whose turn it is are stopped (SIGSTOP).

    A shared processor can be a third slower for minutes, which would dominate the ratio of two consecutive
    runs. A turn should be much longer than the time to fill a cache, and much shorter than a step."""

    def __init__(self, seconds: float = 0.5) -> None:
        self._seconds = seconds
        self._others = psutil.Process().children()
        self._sides: list[psutil.Process] = []
        self._turns: list[Turn] = []
        self._came = threading.Condition()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._take, name="turns", daemon=True)

    def __enter__(self) -> "Turns":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(_WAIT_SECONDS)

    def wait_for_sides(self, count: int) -> None:
        """Wait until `count` sides have started. Raises TimeoutError."""
        with self._came:
            if not self._came.wait_for(lambda: len(self._sides) >= count, _WAIT_SECONDS):
                raise TimeoutError(f"{len(self._sides)} of {count} sides came in {_WAIT_SECONDS:g} s")

    def seconds(self, side: int, begin: float, end: float) -> float:
        """Return for how many seconds between two times (seconds since the epoch) the side had the
        machine."""
        return seconds_of(self._turns, side, begin, end)

    def _take(self) -> None:
        try:
            while not self._done.is_set():
                self._look()
                running = [number for number, side in enumerate(self._sides) if side.is_running()]
                for number in running:
                    self._turn(number)
                if not running:
                    self._done.wait(_LOOK_SECONDS)
        finally:
            for side in self._sides:
                _signal(_family(side), signal.SIGCONT)

    def _look(self) -> None:
        """Detect new sides and stop them until their turn."""
        for child in psutil.Process().children():
            if child not in self._sides and child not in self._others:
                _signal(_family(child), signal.SIGSTOP)
                with self._came:
                    self._sides.append(child)
                    self._came.notify_all()

    def _turn(self, number: int) -> None:
        side = self._sides[number]
        family = _family(side)
        begin = time.time()
        _signal(family, signal.SIGCONT)
        self._done.wait(self._seconds)
        _signal(_family(side), signal.SIGSTOP)
        self._turns.append(Turn(number, begin, time.time()))


def _family(side: psutil.Process) -> list[psutil.Process]:
    try:
        return [side, *side.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _signal(family: Sequence[psutil.Process], number: signal.Signals) -> None:
    for process in family:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)
