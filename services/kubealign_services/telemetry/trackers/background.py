"""Runs a tracker on a thread of its own, so that a tracker that hangs or fails does not affect the job."""

import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kubealign_services.telemetry.trackers.completions import completion_rows
from kubealign_services.telemetry.trackers.contract import CompletionTracker, RunOutcome, Tracker

#: Maximum number of steps and validations that are queued while a tracker is slow.
MAX_QUEUED_STEPS = 4096

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Metrics:
    step: int
    fence: int
    values: dict[str, float]


@dataclass(frozen=True)
class _Completions:
    step: int
    rows: list[dict[str, Any]]


class BackgroundTracker:
    """A metric sink that returns at once. `open_tracker` creates the tracker, on its thread.

    An exception of the tracker ends it, with one warning; while the tracker hangs, metrics and responses
    beyond `max_queued` calls are dropped.

    `completions`: number of responses of a step that the tracker gets.
    """

    def __init__(
        self,
        name: str,
        open_tracker: Callable[[], Tracker],
        max_queued: int = MAX_QUEUED_STEPS,
        completions: int = 0,
    ) -> None:
        self.name = name
        self.dropped = 0
        self._open = open_tracker
        self._completions = completions
        self._steps: queue.Queue[_Metrics | _Completions | RunOutcome] = queue.Queue(max_queued)
        self._failed = False
        self._outcome: RunOutcome | None = None
        # A daemon thread: the interpreter does not wait for a tracker that hangs.
        self._thread = threading.Thread(target=self._run, name=f"tracker {name}", daemon=True)
        self._thread.start()

    def step(self, step: int, fence: int, metrics: Mapping[str, float]) -> None:
        self._enqueue(_Metrics(step, fence, dict(metrics)))

    def samples(self, step: int, fence: int, samples: Sequence[Mapping[str, Any]]) -> None:
        if rows := completion_rows(step, fence, samples[: self._completions]):
            self._enqueue(_Completions(step, rows))

    def validation_samples(self, step: int, fence: int, samples: Sequence[Mapping[str, Any]]) -> None:
        """Ignore them: a tracker receives the previews."""

    def _enqueue(self, item: _Metrics | _Completions) -> None:
        if self._failed:
            return
        try:
            self._steps.put_nowait(item)
        except queue.Full:
            if not self.dropped:
                log.warning(
                    "a tracker does not keep up: metrics are dropped",
                    extra={"tracker": self.name, "waiting": self._steps.qsize()},
                )
            self.dropped += 1

    def request_close(self, outcome: RunOutcome) -> None:
        """Ask the tracker to write the queued metrics and close. Returns at once."""
        self._outcome = outcome
        # When the queue is full, the tracker ends after it has written the queued steps.
        with contextlib.suppress(queue.Full):
            self._steps.put_nowait(outcome)

    def wait_closed(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for the tracker to close; return True when it has closed."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._process_queue(self._open())
        # No exception of a tracker may end the job.
        except Exception as error:  # noqa: BLE001
            self._failed = True
            log.warning(
                "a tracker failed; the job goes on without it",
                extra={"tracker": self.name, "cause": f"{type(error).__name__}: {error}"},
            )

    def _process_queue(self, tracker: Tracker) -> None:
        while not (self._outcome is not None and self._steps.empty()):
            item = self._steps.get()
            match item:
                case RunOutcome():
                    break
                case _Metrics():
                    tracker.step(item.step, item.fence, item.values)
                case _Completions() if isinstance(tracker, CompletionTracker):
                    tracker.completions(item.step, item.rows)
        assert self._outcome is not None
        tracker.close(self._outcome)
