"""Sizing measurements from the steps of an existing run. Pure.

A worker with room for all of its sequences makes a pass for each token of the longest of them, and each
pass has a fixed cost and a cost per running sequence:

    seconds of generation = a * longest + b * tokens / workers

Steps with different lengths determine a and b; otherwise each is assumed to account for half of the time.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from kubealign.bench.measurements import SizingError, SizingMeasurements, StepShape
from kubealign.bench.response_lengths import fit_lengths

#: Warm-up steps at the start, which are ignored.
_WARM_UP = 1
_MIN_STEPS = 3
#: Sine of the angle between (longest) and (tokens) over the steps; below it they are considered collinear.
_COLLINEAR = 0.05
#: Minimum share of a step that an asynchronous trainer must have waited, so that its workers' speed is known.
_MIN_WAIT_SHARE = 0.05


def measure_run(
    name: str, lines: Mapping[int, Mapping[str, Any]], shape: StepShape, max_tokens: int
) -> SizingMeasurements:
    """Derive the measurements of a run.

    Args:
        lines: Lines of metrics.jsonl by step.
        shape: Shape of the job as it ran.

    Raises SizingError where the steps are too few or lack a metric.
    """
    steps = [lines[step] for step in sorted(lines)][_WARM_UP:]
    if len(steps) < _MIN_STEPS:
        raise SizingError(
            f"{name}: {len(lines)} steps are too few: at least {_MIN_STEPS + _WARM_UP} are needed"
        )
    missing = {"seconds/generate", "seconds/train", "response/length", "response/length_max"} - steps[
        0
    ].keys()
    if missing:
        raise SizingError(f"{name}: its steps lack {', '.join(sorted(missing))}: did they sample?")

    def mean(figure: str) -> float:
        return fmean(float(step.get(figure, 0.0)) for step in steps)

    lengths = fit_lengths(
        [float(step["response/length"]) for step in steps],
        [float(step["response/length_max"]) for step in steps],
        shape.sequences,
        max_tokens,
    )
    # Both run at the same time.
    before = max(mean("seconds/values"), mean("seconds/logprobs"))
    accounted = mean("seconds/generate") + mean("seconds/score") + before
    accounted += mean("seconds/train") + mean("seconds/refit")
    rest = max(0.0, mean("seconds/step") - accounted)
    fixed, each, assumed = (
        _fit_asynchronous(name, steps, shape) if shape.staleness else _fit_synchronous(steps, shape)
    )
    most = max(2, shape.max_sequences)
    return SizingMeasurements(
        source=f"{len(steps)} steps of {name}, with {shape.replicas} rollout workers",
        passes=[(1, fixed + each), (most, fixed + most * each)],
        mean_length=lengths.mean,
        longest_length=lengths.longest,
        length_spread=lengths.spread,
        train_seconds=mean("seconds/train"),
        before_seconds=before,
        score_seconds=mean("seconds/score"),
        refit_seconds=mean("seconds/refit"),
        rest_seconds=rest,
        refit_bytes=round(mean("refit/bytes")) or None,
        assumed=[*assumed, "the cost of prompts is included in the seconds of generation"],
    )


def _fit_synchronous(steps: Sequence[Mapping[str, Any]], shape: StepShape) -> tuple[float, float, list[str]]:
    """Fit (a, b) by least squares without negative terms."""
    points = []
    for step in steps:
        tokens = float(step["response/length"]) * shape.sequences / shape.replicas
        # If not all sequences run at the same time, there are more passes than tokens in the longest.
        passes = max(float(step["response/length_max"]), tokens / shape.max_sequences)
        points.append((passes, tokens, float(step["seconds/generate"])))
    pp = sum(p * p for p, _, _ in points)
    tt = sum(t * t for _, t, _ in points)
    pt = sum(p * t for p, t, _ in points)
    ps = sum(p * s for p, _, s in points)
    ts = sum(t * s for _, t, s in points)
    determinant = pp * tt - pt * pt
    if determinant > _COLLINEAR**2 * pp * tt:
        a, b = (tt * ps - pt * ts) / determinant, (pp * ts - pt * ps) / determinant
        if a >= 0 and b >= 0:
            return a, b, []
        return (ps / pp, 0.0, []) if b < 0 else (0.0, ts / tt, [])
    text = "half of a pass is fixed cost and half per sequence: the steps' lengths are too similar to tell"
    return ps / pp / 2, ts / tt / 2, [text]


def _fit_asynchronous(
    name: str, steps: Sequence[Mapping[str, Any]], shape: StepShape
) -> tuple[float, float, list[str]]:
    """Fit (a, b) for workers that always have requests: a step's tokens in a step's time."""
    waited = fmean(float(step["seconds/generate"]) / float(step["seconds/step"]) for step in steps)
    if waited < _MIN_WAIT_SHARE:
        raise SizingError(
            f"{name}: its trainer hardly waited ({100 * waited:.0f} % of a step), so the maximum "
            f"speed of its {shape.replicas} rollout workers is unknown: fewer may suffice"
        )
    seconds = fmean(float(step["seconds/step"]) for step in steps)
    tokens = fmean(float(step["response/length"]) for step in steps) * shape.sequences / shape.replicas
    running = min(shape.max_sequences, (shape.staleness + 1) * shape.sequences // shape.replicas) or 1
    a_pass = seconds * running / tokens
    text = "half of a pass is fixed cost and half per sequence: an asynchronous run cannot tell"
    return a_pass / 2, a_pass / 2 / running, [text]
