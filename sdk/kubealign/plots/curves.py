"""Curves of a metric over several runs. Pure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean

#: Metric with the seconds of a step, whose sum is the axis `seconds`.
_STEP_SECONDS = "seconds/step"


class Axis(StrEnum):
    """Horizontal axis of a curve. seconds: sum of `seconds/step` up to the step, so without validations and
    interruptions.
    """

    STEP = "step"
    SECONDS = "seconds"


class PlotError(ValueError):
    """Runs that the requested curves cannot be drawn from."""


@dataclass(frozen=True)
class RunMetrics:
    """Rows of a run, one per step, with `step` and the metrics of the step, and the name that errors use."""

    name: str
    rows: Sequence[Mapping[str, float]]

    @property
    def metrics(self) -> list[str]:
        """Names of all metrics, in order of first occurrence."""
        return list(dict.fromkeys(name for row in self.rows for name in row if name != "step"))


@dataclass(frozen=True)
class RunGroup:
    """Runs that differ in their seed only, drawn as one curve."""

    label: str
    runs: Sequence[RunMetrics]


@dataclass(frozen=True)
class Curve:
    """Mean over the runs of a group, with the least and the largest value at each point."""

    label: str
    xs: Sequence[float]
    means: Sequence[float]
    lows: Sequence[float]
    highs: Sequence[float]
    runs: int


@dataclass(frozen=True)
class MetricNames:
    """One metric, with the names under which runs may report it; the first one that a run has counts."""

    alternatives: Sequence[str]

    @classmethod
    def parse(cls, text: str) -> "MetricNames":
        """Parse `NAME[,NAME...]`. Raises PlotError for an empty name."""
        names = [name.strip() for name in text.split(",")]
        if not all(names):
            raise PlotError(f"--metric {text}: a name is empty; allowed: NAME or NAME,NAME")
        return cls(names)

    @property
    def title(self) -> str:
        return self.alternatives[0]

    def select(self, run: RunMetrics) -> str:
        """Return the name under which a run reports the metric.

        Raises PlotError where it reports none, with the names that it has.
        """
        available = run.metrics
        for name in self.alternatives:
            if name in available:
                return name
        names = " or ".join(self.alternatives)
        raise PlotError(f"{run.name} has no metric {names}; it has {', '.join(sorted(available)) or 'none'}")


def parse_group(text: str) -> tuple[str | None, list[str]]:
    """Split `[LABEL=]RUN[,RUN...]` into the label, None where there is none, and the names of the runs.

    Raises PlotError for an empty label or name.
    """
    label, separator, names = text.rpartition("=")
    runs = [name.strip() for name in names.split(",")]
    if not all(runs) or (separator and not label.strip()):
        raise PlotError(f"{text!r}: a label or a run is empty; allowed: RUN, RUN,RUN or LABEL=RUN,RUN")
    return (label.strip() if separator else None), runs


def select_default_metric(groups: Iterable[RunGroup], preferred: Sequence[str]) -> MetricNames:
    """Return the first of the preferred metrics that every run has.

    Raises PlotError where they share none of them.
    """
    runs = [run for group in groups for run in group.runs]
    for name in preferred:
        if all(name in run.metrics for run in runs):
            return MetricNames([name])
    shared = set.intersection(*(set(run.metrics) for run in runs)) if runs else set()
    raise PlotError(f"name a metric with --metric; the runs share {', '.join(sorted(shared)) or 'none'}")


def build_curve(group: RunGroup, metric: MetricNames, axis: Axis) -> Curve:
    """Return the curve of a group over the steps at which all of its runs report the metric.

    On the axis `seconds` a point lies at the mean seconds of the runs. Values that are not finite are left
    out.

    Raises PlotError where a run lacks the metric, where the runs share no step, and for the axis `seconds`
    where a run lacks the seconds of a step.
    """
    points = [_run_points(run, metric, axis) for run in group.runs]
    steps = sorted(set.intersection(*(set(run) for run in points))) if points else []
    if not steps:
        names = ", ".join(run.name for run in group.runs)
        raise PlotError(f"{names}: no step at which every run has a finite {metric.title}")
    values = [[run[step][1] for run in points] for step in steps]
    return Curve(
        group.label,
        [fmean(run[step][0] for run in points) for step in steps],
        [fmean(each) for each in values],
        [min(each) for each in values],
        [max(each) for each in values],
        len(points),
    )


def _run_points(run: RunMetrics, metric: MetricNames, axis: Axis) -> dict[int, tuple[float, float]]:
    """Return (x, value) by step."""
    name = metric.select(run)
    seconds = 0.0
    points = {}
    for row in run.rows:
        step = int(row["step"])
        if axis is Axis.SECONDS and step > 0:
            if _STEP_SECONDS not in row:
                raise PlotError(f"{run.name} has no {_STEP_SECONDS} at step {step}: use --x step")
            seconds += row[_STEP_SECONDS]
        if name in row and math.isfinite(row[name]):
            points[step] = (seconds if axis is Axis.SECONDS else float(step), row[name])
    return points
