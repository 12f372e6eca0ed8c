"""A tracker beside the job: on a thread of its own, so that one that hangs or fails costs the job nothing."""

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kubealign_services.trackers.contract import Ending, Tracker

#: Steps, and validations, that wait while a tracker is slow.
WAITING = 4096

log = logging.getLogger(__name__)


class BackgroundTracker:
    """A sink of figures that returns at once. `open` makes the tracker, on its thread.

    What it raises ends it, with one warning; while it hangs, figures beyond `waiting` steps are left out.
    """

    def __init__(self, name: str, open_tracker: Callable[[], Tracker], waiting: int = WAITING) -> None:
        self.name = name
        self.left_out = 0
        self._open = open_tracker
        self._steps: queue.Queue[tuple[int, int, dict[str, float]] | Ending] = queue.Queue(waiting)
        self._failed = False
        self._ending: Ending | None = None
        # Nobody waits for it at the interpreter's end: it may hang.
        self._thread = threading.Thread(target=self._work, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def step(self, step: int, fence: int, metrics: Mapping[str, float]) -> None:
        if self._failed:
            return
        try:
            self._steps.put_nowait((step, fence, dict(metrics)))
        except queue.Full:
            if not self.left_out:
                log.warning(
                    "a tracker does not keep up: figures are left out",
                    extra={"tracker": self.name, "waiting": self._steps.qsize()},
                )
            self.left_out += 1

    def samples(self, step: int, samples: Sequence[Mapping[str, Any]]) -> None:
        """A sink's; trackers are given figures alone."""

    def end(self, ending: Ending) -> None:
        """Let it write what waits, and close. Returns at once."""
        self._ending = ending
        # Where there is no room, it ends when it has written what waits.
        with contextlib.suppress(queue.Full):
            self._steps.put_nowait(ending)

    def ended(self, timeout: float) -> bool:
        """Whether it has closed, waiting so many seconds for it."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _work(self) -> None:
        try:
            self._track(self._open())
        # Whatever a tracker raises ends no job.
        except Exception as error:  # noqa: BLE001
            self._failed = True
            log.warning(
                "a tracker failed; the job goes on without it",
                extra={"tracker": self.name, "cause": f"{type(error).__name__}: {error}"},
            )

    def _track(self, tracker: Tracker) -> None:
        while not (self._ending is not None and self._steps.empty()):
            held = self._steps.get()
            if isinstance(held, Ending):
                break
            tracker.step(*held)
        assert self._ending is not None
        tracker.close(self._ending)
