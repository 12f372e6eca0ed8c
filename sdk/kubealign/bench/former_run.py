"""The figures of a sizing from the steps of a run that exists. Pure.

A worker that has room for all of its sequences makes a pass for each token of the longest of them, and each
pass costs something for itself and something for each sequence that still runs:

    seconds of generation = a * longest + b * tokens / workers

Steps whose lengths differ tell a and b; where they do not, each is taken to be half of it.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from kubealign.bench.figures import Figures, NotSized, StepShape
from kubealign.bench.lengths import fitted

#: Steps at the start, in which caches and threads warm up.
_WARM_UP = 1
_FEWEST = 3
#: The sine of the angle between (longest) and (tokens) over the steps, below which they say the same.
_ALIKE = 0.05
#: Share of a step that an asynchronous trainer must have waited for its workers' speed to be known.
_WAITED = 0.05


def figures_of_run(
    name: str, lines: Mapping[int, Mapping[str, Any]], shape: StepShape, max_tokens: int
) -> Figures:
    """lines: by step, of metrics.jsonl. shape: of the job as it ran. Raises NotSized where there are too few
    steps, or they do not say what is needed."""
    steps = [lines[step] for step in sorted(lines)][_WARM_UP:]
    if len(steps) < _FEWEST:
        raise NotSized(f"{name}: {len(lines)} steps are too few: at least {_FEWEST + _WARM_UP} are needed")
    missing = {"seconds/generate", "seconds/train", "response/length", "response/length_max"} - steps[
        0
    ].keys()
    if missing:
        raise NotSized(f"{name}: its steps do not say {', '.join(sorted(missing))}: did they sample?")

    def mean(figure: str) -> float:
        return fmean(float(step.get(figure, 0.0)) for step in steps)

    lengths = fitted(
        [float(step["response/length"]) for step in steps],
        [float(step["response/length_max"]) for step in steps],
        shape.sequences,
        max_tokens,
    )
    # At the same time, as both take part in the step.
    before = max(mean("seconds/values"), mean("seconds/logprobs"))
    known = mean("seconds/generate") + mean("seconds/score") + before
    known += mean("seconds/train") + mean("seconds/refit")
    rest = max(0.0, mean("seconds/step") - known)
    fixed, each, assumed = _flowing(name, steps, shape) if shape.staleness else _drained(steps, shape)
    most = max(2, shape.max_sequences)
    return Figures(
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
        assumed=[*assumed, "prompts cost what is within the seconds of generation"],
    )


def _drained(steps: Sequence[Mapping[str, Any]], shape: StepShape) -> tuple[float, float, list[str]]:
    """(a, b): least squares without negative terms."""
    points = []
    for step in steps:
        tokens = float(step["response/length"]) * shape.sequences / shape.replicas
        # Where not all run at the same time, there are more passes than the longest has tokens.
        passes = max(float(step["response/length_max"]), tokens / shape.max_sequences)
        points.append((passes, tokens, float(step["seconds/generate"])))
    pp = sum(p * p for p, _, _ in points)
    tt = sum(t * t for _, t, _ in points)
    pt = sum(p * t for p, t, _ in points)
    ps = sum(p * s for p, _, s in points)
    ts = sum(t * s for _, t, s in points)
    determinant = pp * tt - pt * pt
    if determinant > _ALIKE**2 * pp * tt:
        a, b = (tt * ps - pt * ts) / determinant, (pp * ts - pt * ps) / determinant
        if a >= 0 and b >= 0:
            return a, b, []
        return (ps / pp, 0.0, []) if b < 0 else (0.0, ts / tt, [])
    text = "half of a pass is for itself and half for its sequences: the steps' lengths are too alike to tell"
    return ps / pp / 2, ts / tt / 2, [text]


def _flowing(
    name: str, steps: Sequence[Mapping[str, Any]], shape: StepShape
) -> tuple[float, float, list[str]]:
    """Of workers that had always something to do: a step's tokens in a step's time."""
    waited = fmean(float(step["seconds/generate"]) / float(step["seconds/step"]) for step in steps)
    if waited < _WAITED:
        raise NotSized(
            f"{name}: its trainer hardly waited ({100 * waited:.0f} % of a step), so nobody knows how much "
            f"faster its {shape.replicas} rollout workers could have been: fewer may do"
        )
    seconds = fmean(float(step["seconds/step"]) for step in steps)
    tokens = fmean(float(step["response/length"]) for step in steps) * shape.sequences / shape.replicas
    running = min(shape.max_sequences, (shape.staleness + 1) * shape.sequences // shape.replicas) or 1
    a_pass = seconds * running / tokens
    text = "half of a pass is for itself and half for its sequences: an asynchronous run does not tell"
    return a_pass / 2, a_pass / 2 / running, [text]
