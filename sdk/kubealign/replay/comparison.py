"""Comparison of the metrics of two runs of the same steps. Pure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

#: Timings differ from run to run.
_TIMED = ("seconds/", "tokens_per_second", "refit/")
#: Keys of a metrics.jsonl line that are not metrics.
_NOT_METRICS = frozenset({"step", "fence", "time"})
#: Below this the relative difference of two metrics is meaningless: they are sums of cancelling terms.
_NEGLIGIBLE = 1e-6


@dataclass(frozen=True)
class MetricDifference:
    """One metric of one step that is not equal bit for bit."""

    step: int
    metric: str
    recorded: float
    replayed: float

    @property
    def relative(self) -> float:
        """|a - b| / max(|a|, |b|); infinite where only one of them is finite; 0 for two negligible values."""
        a, b = self.recorded, self.replayed
        if not (math.isfinite(a) and math.isfinite(b)):
            return math.inf
        size = max(abs(a), abs(b))
        return 0.0 if size < _NEGLIGIBLE else abs(a - b) / size


@dataclass(frozen=True)
class ReplayComparison:
    """steps, metrics: numbers of compared steps and metrics. differences: in step order, by name within a
    step.
    """

    steps: int
    metrics: int
    differences: Sequence[MetricDifference]

    @property
    def largest(self) -> MetricDifference | None:
        return max(self.differences, key=lambda each: each.relative, default=None)

    def first_difference_beyond(self, tolerance: float) -> MetricDifference | None:
        """Return the first difference that exceeds rounding."""
        return next((each for each in self.differences if each.relative > tolerance), None)


def last_line_per_step(lines: Iterable[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """Return the last line of each trained step of a metrics.jsonl."""
    return {int(line["step"]): line for line in lines if "seconds/step" in line}


def compare_runs(
    recorded: Mapping[int, Mapping[str, Any]], replayed: Mapping[int, Mapping[str, Any]]
) -> ReplayComparison:
    """Compare every metric of the replayed steps with the recorded step's; a metric missing there counts as
    NaN.

    Metrics of the recorded step alone belong to the generation of its batch. Steps that were not replayed
    are not compared.
    """
    metric_count = 0
    differences = []
    for step in sorted(replayed):
        recorded_step = recorded.get(step, {})
        for name, value in sorted(replayed[step].items()):
            if name in _NOT_METRICS or name.startswith(_TIMED):
                continue
            metric_count += 1
            difference = MetricDifference(step, name, float(recorded_step.get(name, math.nan)), float(value))
            if not _is_same(difference.recorded, difference.replayed):
                differences.append(difference)
    return ReplayComparison(len(replayed), metric_count, differences)


def _is_same(a: float, b: float) -> bool:
    return a == b or (math.isnan(a) and math.isnan(b))
