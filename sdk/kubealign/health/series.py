"""A job's figures over its steps, as the rules look at them."""

import math
from collections.abc import Sequence
from statistics import median

from kubealign.read_model import StepMetrics

#: Steps that count as now: a median over so many is not moved by two that stand out.
RECENT = 5
#: Only a step that was trained has it.
_TRAINED = "seconds/step"


class Series:
    """The figures of each step, of the last time that it was done."""

    def __init__(self, steps: Sequence[StepMetrics]) -> None:
        held: dict[int, dict[str, float]] = {}
        fence = 0
        for metrics in steps:
            if metrics.fence > fence:
                fence = metrics.fence
                # What the new driver goes back behind is done again.
                first = metrics.step if _TRAINED in metrics.values else metrics.step + 1
                held = {step: values for step, values in held.items() if step < first}
            held[metrics.step] = held.get(metrics.step, {}) | metrics.values
        self._held = dict(sorted(held.items()))

    def points(self, name: str) -> list[tuple[int, float]]:
        """(step, value) of the steps that measured it, where it is a finite number."""
        return [
            (step, values[name])
            for step, values in self._held.items()
            if name in values and math.isfinite(values[name])
        ]

    def values(self, name: str) -> list[float]:
        return [value for _, value in self.points(name)]

    def now(self, name: str, steps: int = RECENT) -> float | None:
        """The median of the last steps; None before there are so many."""
        values = self.values(name)[-steps:]
        return median(values) if len(values) == steps else None

    def at_first(self, name: str, steps: int = RECENT) -> float | None:
        """The median of the first steps; None before as many others have followed."""
        values = self.values(name)
        return median(values[:steps]) if len(values) >= 2 * steps else None

    def around(self, name: str, step: int, width: int = RECENT) -> float | None:
        """The median of the last steps up to one."""
        values = [value for at, value in self.points(name) if at <= step][-width:]
        return median(values) if values else None

    @property
    def names(self) -> frozenset[str]:
        return frozenset(name for values in self._held.values() for name in values)
