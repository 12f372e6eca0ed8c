"""One-line summaries of step metrics. Pure."""

from collections.abc import Mapping

from kubealign.read_model import StepMetrics

#: (label, metric, format); metrics that a job does not report are left out.
STEP_METRICS = (
    ("round", "round/number", "{:.0f}"),
    ("reward", "reward/mean", "{:.3f}"),
    ("kl", "kl/reference", "{:.3f}"),
    ("loss", "sft/loss", "{:.3f}"),
    ("loss", "rm/loss", "{:.3f}"),
    ("accuracy", "rm/accuracy", "{:.3f}"),
    ("len", "response/length", "{:.1f}"),
    ("tok/s", "tokens_per_second", "{:.0f}"),
)
#: Phases of a step, in their order.
PHASE_TIMES = (
    ("gen", "seconds/generate"),
    ("score", "seconds/score"),
    ("values", "seconds/values"),
    ("judge", "seconds/judge"),
    ("reference", "seconds/reference"),
    ("record", "seconds/record"),
    ("logprobs", "seconds/logprobs"),
    ("train", "seconds/train"),
    ("refit", "seconds/refit"),
)
_MAX_VALIDATION = 8


def format_step(metrics: StepMetrics, max_steps: int | None) -> str:
    """Return a line such as `step 12/90 reward 0.412 kl 0.031 len 7.2 tok/s 812 gen 0.6s train 0.3s val/exact
    0.650`. With max_steps None, the total is left out.
    """
    words = [f"step {metrics.step}/{max_steps}" if max_steps else f"step {metrics.step}"]
    words += format_metrics(metrics.values)
    words += [
        f"{label} {format_seconds(metrics.values[name])}"
        for label, name in PHASE_TIMES
        if metrics.values.get(name)
    ]
    words += format_validation(metrics.values)
    return " ".join(words)


def format_metrics(values: Mapping[str, float]) -> list[str]:
    return [f"{label} {form.format(values[name])}" for label, name, form in STEP_METRICS if name in values]


def format_validation(values: Mapping[str, float]) -> list[str]:
    """Return the val/ metrics, preferring short names where there are many."""
    names = [name for name in values if name.startswith("val/")]
    shown = set(sorted(names, key=lambda name: (name.count("/"), len(name)))[:_MAX_VALIDATION])
    return [f"{name} {values[name]:.3f}" for name in names if name in shown]


def format_seconds(value: float) -> str:
    """Format a duration as `0.31s`, `12.4s`, `3m05s` or `2h07m`."""
    if value < 10:
        return f"{value:.2f}s"
    if value < 60:
        return f"{value:.1f}s"
    rounded = round(value)
    if rounded < 3600:
        return f"{rounded // 60}m{rounded % 60:02d}s"
    return f"{rounded // 3600}h{rounded % 3600 // 60:02d}m"
