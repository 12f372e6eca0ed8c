"""Progress of a running job as the display shows it."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kubealign.local.processes.supervisor import ProcessView
from kubealign.read_model import (
    STREAM_START,
    JobProgress,
    ReadModelClient,
    ReadModelUnavailable,
    SampleRecord,
    StepMetrics,
)

_RECENT_STEPS = 20


@dataclass
class ProgressSnapshot:
    """Display state, updated by `refresh`."""

    job: str
    #: None: not known before the data is prepared.
    max_steps: int | None
    started_at: float
    progress: JobProgress = field(default_factory=JobProgress)
    recent_steps: deque[StepMetrics] = field(default_factory=lambda: deque(maxlen=_RECENT_STEPS))
    #: The latest value of each val/ metric.
    validation: dict[str, float] = field(default_factory=dict)
    sample: SampleRecord | None = None
    processes: list[ProcessView] = field(default_factory=list)
    heartbeats: dict[str, dict[str, Any]] = field(default_factory=dict)
    _last_entry: str | None = None

    @property
    def step(self) -> int:
        return max(self.progress.step, self.recent_steps[-1].step if self.recent_steps else 0)

    @property
    def remaining_seconds(self) -> float | None:
        """Estimate from the mean time of the recent steps; None without any."""
        times = [m.values["seconds/step"] for m in self.recent_steps if m.values.get("seconds/step")]
        if not times or self.max_steps is None or self.step >= self.max_steps:
            return None
        return (self.max_steps - self.step) * sum(times) / len(times)

    async def skip_existing_steps(self, reader: ReadModelClient) -> None:
        """Skip the steps of an earlier run of the job."""
        newest = await reader.newest_metrics()
        self._last_entry = newest.entry if newest is not None else STREAM_START

    async def refresh(
        self, reader: ReadModelClient, processes: Callable[[], list[ProcessView]]
    ) -> list[StepMetrics]:
        """Read the current state and return the new steps.

        While Redis is unavailable, the previous state stays.
        """
        self.processes = processes()
        try:
            if self._last_entry is None:
                await self.skip_existing_steps(reader)
            new = await reader.metrics(self._last_entry or STREAM_START)
            self.progress = await reader.progress() or self.progress
            # Known to the driver where the number of rows decides.
            self.max_steps = self.progress.max_steps or self.max_steps
            self.heartbeats = await reader.heartbeats([view.name for view in self.processes])
            samples = await reader.newest_samples(1)
        except ReadModelUnavailable:
            return []
        if samples:
            self.sample = samples[0]
        for metrics in new:
            self._last_entry = metrics.entry
            self.validation |= {n: v for n, v in metrics.values.items() if n.startswith("val/")}
            # An entry with validation metrics only is not a training step.
            if any(not name.startswith("val/") for name in metrics.values):
                self.recent_steps.append(metrics)
        return new
