"""Metrics of a job over its steps, as the health rules read them."""

import math
from collections.abc import Sequence
from statistics import median

from kubealign.read_model import StepMetrics

#: Steps of the current window: a median over so many is robust to two outliers.
RECENT = 5
#: Present only in trained steps.
_TRAINED_METRIC = "seconds/step"


class MetricSeries:
    """Metrics of each step, from its last execution."""

    def __init__(self, steps: Sequence[StepMetrics]) -> None:
        values_by_step: dict[int, dict[str, float]] = {}
        fence = 0
        for metrics in steps:
            if metrics.fence > fence:
                fence = metrics.fence
                # Steps after the new driver's checkpoint are executed again.
                first = metrics.step if _TRAINED_METRIC in metrics.values else metrics.step + 1
                values_by_step = {step: values for step, values in values_by_step.items() if step < first}
            values_by_step[metrics.step] = values_by_step.get(metrics.step, {}) | metrics.values
        self._steps = dict(sorted(values_by_step.items()))

    def points(self, name: str) -> list[tuple[int, float]]:
        """Return (step, value) of the steps with a finite value."""
        return [
            (step, values[name])
            for step, values in self._steps.items()
            if name in values and math.isfinite(values[name])
        ]

    def values(self, name: str) -> list[float]:
        return [value for _, value in self.points(name)]

    def recent_median(self, name: str, steps: int = RECENT) -> float | None:
        """Return the median of the last steps; None before there are enough."""
        values = self.values(name)[-steps:]
        return median(values) if len(values) == steps else None

    def initial_median(self, name: str, steps: int = RECENT) -> float | None:
        """Return the median of the first steps; None before as many others have followed."""
        values = self.values(name)
        return median(values[:steps]) if len(values) >= 2 * steps else None

    def median_before(self, name: str, step: int, width: int = RECENT) -> float | None:
        """Return the median of the last steps up to `step`."""
        values = [value for at, value in self.points(name) if at <= step][-width:]
        return median(values) if values else None

    @property
    def names(self) -> frozenset[str]:
        return frozenset(name for values in self._steps.values() for name in values)
