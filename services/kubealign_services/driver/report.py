"""The figures of a step: collected while it runs, then written where people look for them."""

import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from kubealign_services.driver.line_file import append

log = logging.getLogger(__name__)


class Sink(Protocol):
    """Somewhere that a step's figures go: the read model, Prometheus, a tracker."""

    def step(self, step: int, fence: int, metrics: Mapping[str, float]) -> None:
        """The figures of a step, or of a validation at it."""

    def samples(self, step: int, samples: Sequence[Mapping[str, Any]]) -> None:
        """A few samples of a step."""


@dataclass(frozen=True)
class Answer:
    """What a batch does not hold of a sample: the texts."""

    prompt: str
    response: str


class StepFigures:
    """What one step has measured so far. `answers`: the texts of its batch, by sample id; `samples`: those
    that are shown, as the read model has them; `attempts`: how often each group of it had been asked for
    again."""

    def __init__(self, step: int) -> None:
        self.step = step
        self.metrics: dict[str, float] = {}
        self.answers: dict[str, Answer] = {}
        self.samples: list[dict[str, Any]] = []
        self.attempts: dict[str, int] = {}
        self._started = time.perf_counter()

    def add(self, metrics: Mapping[str, float]) -> None:
        self.metrics.update(metrics)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Seconds spent inside, under seconds/NAME; phases of one name add up."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            key = f"seconds/{name}"
            self.metrics[key] = self.metrics.get(key, 0.0) + time.perf_counter() - begun

    def seconds(self) -> float:
        return time.perf_counter() - self._started


class Report:
    """Writes each step's figures as a line of `metrics.jsonl` and to every sink.

    After a rollback a step is reported again, under a higher fence: readers keep the last line of a step.
    newest: the figures of the last step; newest_at: when it was done, or this began (time.monotonic()).
    """

    def __init__(self, path: Path, fence: int, sinks: list[Sink]) -> None:
        self._path = path
        self._fence = fence
        self._sinks = sinks
        self.newest: Mapping[str, float] = {}
        self.newest_at = time.monotonic()

    @contextmanager
    def step(self, step: int) -> Iterator[StepFigures]:
        """Measure a step; its figures are written when it ends well and has any."""
        figures = StepFigures(step)
        yield figures
        if not figures.metrics:
            return
        seconds = figures.seconds()
        figures.metrics["seconds/step"] = seconds
        if "batch/tokens" in figures.metrics:
            figures.metrics["tokens_per_second"] = figures.metrics["batch/tokens"] / seconds
        self.newest, self.newest_at = figures.metrics, time.monotonic()
        self.write(step, figures.metrics)
        self.samples(step, figures.samples)

    def samples(self, step: int, samples: Sequence[Mapping[str, Any]]) -> None:
        for sink in self._sinks:
            sink.samples(step, samples)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        line = {"step": step, "fence": self._fence, "time": time.time(), **metrics}
        append(self._path, json.dumps(line) + "\n")
        for sink in self._sinks:
            sink.step(step, self._fence, metrics)
        log.info("step", extra={"step": step, "metrics": dict(metrics)})
