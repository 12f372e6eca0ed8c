"""Step metrics: collected while a step runs, then written to `metrics.jsonl` and to all sinks."""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from kubealign_services.telemetry.tracing import record_span, span

log = logging.getLogger(__name__)


class MetricSink(Protocol):
    """Destination of step metrics: the read model, Prometheus, a tracker."""

    def step(self, step: int, fence: int, metrics: Mapping[str, float]) -> None:
        """Receive the metrics of a step, or of a validation at that step."""

    def samples(self, step: int, fence: int, samples: Sequence[Mapping[str, Any]]) -> None:
        """Receive samples of a step: the best, the worst, then others."""

    def validation_samples(self, step: int, fence: int, samples: Sequence[Mapping[str, Any]]) -> None:
        """Receive all responses of a validation at that step, by row."""


@dataclass(frozen=True)
class SampleText:
    """Texts of a sample, which a batch does not contain. explanations: by source."""

    prompt: str
    response: str
    explanations: Mapping[str, str] = field(default_factory=dict)


class StepRecord:
    """Metrics and previews that one step has collected so far.

    `sample_texts`: texts of the batch by sample id; `previews`: samples for displays, in the read model's
    form; `attempts`: group id -> number of retries.
    """

    def __init__(self, step: int) -> None:
        self.step = step
        self.metrics: dict[str, float] = {}
        self.sample_texts: dict[str, SampleText] = {}
        self.previews: list[dict[str, Any]] = []
        self.attempts: dict[str, int] = {}
        self._started = time.perf_counter()

    def add(self, metrics: Mapping[str, float]) -> None:
        """Add metrics; later values replace earlier ones."""
        self.metrics.update(metrics)

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the seconds spent inside to seconds/NAME."""
        started_at = time.perf_counter()
        try:
            with span(name):
                yield
        finally:
            key = f"seconds/{name}"
            self.metrics[key] = self.metrics.get(key, 0.0) + time.perf_counter() - started_at

    def add_phase(self, name: str, started: float, ended: float) -> None:
        """Set seconds/NAME to the time between two points of time.monotonic()."""
        self.metrics[f"seconds/{name}"] = ended - started
        record_span(name, started, ended)

    def elapsed_seconds(self) -> float:
        """Return the seconds since the step began."""
        return time.perf_counter() - self._started


class MetricsReport:
    """Writes each step's metrics as a line of `metrics.jsonl` and to every sink.

    After a rollback a step is reported again under a higher fence: readers keep the last line of a step.
    `latest_metrics`: metrics of the last step; `latest_step_time`: time of its end, or of this object's
    creation (time.monotonic()).

    Args:
        background: Returns the metrics of work beside the steps, which are added to each step; None: none.
    """

    def __init__(
        self,
        path: Path,
        fence: int,
        sinks: list[MetricSink],
        background: Callable[[], Mapping[str, float]] | None = None,
    ) -> None:
        self._path = path
        self._fence = fence
        self._sinks = sinks
        self._background = background
        self.latest_metrics: Mapping[str, float] = {}
        self.latest_step_time = time.monotonic()

    @contextmanager
    def measure_step(self, step: int) -> Iterator[StepRecord]:
        """Measure a step. Its metrics are written if the step ends without an error and has any."""
        record = StepRecord(step)
        with span("step", {"kubealign.step": step, "kubealign.fence": self._fence}):
            yield record
        if not record.metrics:
            return
        seconds = record.elapsed_seconds()
        record.metrics["seconds/step"] = seconds
        record.add(throughput(record.metrics))
        if self._background is not None:
            record.add(self._background())
        self.latest_metrics, self.latest_step_time = record.metrics, time.monotonic()
        self.write(step, record.metrics)
        self.write_samples(step, record.previews)

    async def write_recovered(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write the metrics of a step that an earlier driver trained, unless it has written them itself.

        `seconds/step` is the time before the TrainStep.
        """
        # A thread reads the file, which has a line for each step of the run.
        if metrics and await asyncio.to_thread(last_reported_step, self._path) != step:
            self.latest_metrics = metrics
            self.write(step, metrics)

    def write_samples(self, step: int, samples: Sequence[Mapping[str, Any]]) -> None:
        """Send samples of a step to every sink."""
        for sink in self._sinks:
            sink.samples(step, self._fence, samples)

    def write_validation_samples(self, step: int, samples: Sequence[Mapping[str, Any]]) -> None:
        """Send the responses of a validation to every sink."""
        for sink in self._sinks:
            sink.validation_samples(step, self._fence, samples)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write one line of metrics and send them to every sink."""
        line = {"step": step, "fence": self._fence, "time": time.time(), **metrics}
        append_lines(self._path, json.dumps(line) + "\n")
        for sink in self._sinks:
            sink.step(step, self._fence, metrics)
        log.info("step", extra={"step": step, "metrics": dict(metrics)})


def throughput(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the tokens per second of the whole step, of its training (both count prompt and response
    tokens) and of its generation (response tokens), as far as the step measured them.
    """
    phases = (
        ("tokens_per_second", "batch/tokens", "seconds/step"),
        ("tokens_per_second/train", "batch/tokens", "seconds/train"),
        ("tokens_per_second/generate", "batch/response_tokens", "seconds/generate"),
    )
    return {
        name: metrics[tokens] / metrics[seconds]
        for name, tokens, seconds in phases
        if tokens in metrics and metrics.get(seconds, 0.0) > 0
    }


def last_reported_step(path: Path) -> int | None:
    """Return the step of the last complete line about a trained step; None: there is none."""
    if not path.exists():
        return None
    last = None
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n") and b'"seconds/step"' in line:
                last = line
    return None if last is None else int(json.loads(last)["step"])


def append_lines(path: Path, lines: str) -> None:
    """Append complete lines.

    A partial last line, which a full disk or an ended process left behind, is removed first, so that each
    line of the file is complete.
    """
    with path.open("ab+") as file:
        if file.seek(0, 2):
            file.seek(-1, 2)
            if file.read(1) != b"\n":
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
        file.write(lines.encode())
