"""Progress of a running job as the display shows it."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kubealign.local.supervisor import ProcessView
from kubealign.read_model import BEGINNING, JobProgress, ReadModel, ReadModelAway, Sample, StepMetrics

_RECENT_STEPS = 20


@dataclass
class Snapshot:
    """Display state, updated by `refresh`."""

    job: str
    max_steps: int
    started_at: float
    progress: JobProgress = field(default_factory=JobProgress)
    recent: deque[StepMetrics] = field(default_factory=lambda: deque(maxlen=_RECENT_STEPS))
    #: The latest value of each val/ metric.
    validation: dict[str, float] = field(default_factory=dict)
    sample: Sample | None = None
    processes: list[ProcessView] = field(default_factory=list)
    heartbeats: dict[str, dict[str, Any]] = field(default_factory=dict)
    _seen: str | None = None

    @property
    def step(self) -> int:
        return max(self.progress.step, self.recent[-1].step if self.recent else 0)

    @property
    def remaining_seconds(self) -> float | None:
        """Estimate from the mean time of the recent steps; None without any."""
        times = [m.values["seconds/step"] for m in self.recent if m.values.get("seconds/step")]
        if not times or self.step >= self.max_steps:
            return None
        return (self.max_steps - self.step) * sum(times) / len(times)

    async def start_after_what_is_there(self, reader: ReadModel) -> None:
        """Skip the steps of an earlier run of the job."""
        newest = await reader.newest_metrics()
        self._seen = newest.entry if newest is not None else BEGINNING

    async def refresh(
        self, reader: ReadModel, processes: Callable[[], list[ProcessView]]
    ) -> list[StepMetrics]:
        """Read the current state and return the new steps. While Redis is unavailable, the previous state
        stays.
        """
        self.processes = processes()
        try:
            if self._seen is None:
                await self.start_after_what_is_there(reader)
            new = await reader.metrics(self._seen or BEGINNING)
            self.progress = await reader.progress() or self.progress
            self.heartbeats = await reader.heartbeats([view.name for view in self.processes])
            samples = await reader.newest_samples(1)
        except ReadModelAway:
            return []
        if samples:
            self.sample = samples[0]
        for metrics in new:
            self._seen = metrics.entry
            self.validation |= {n: v for n, v in metrics.values.items() if n.startswith("val/")}
            # An entry with validation metrics only is not a training step.
            if any(not name.startswith("val/") for name in metrics.values):
                self.recent.append(metrics)
        return new
