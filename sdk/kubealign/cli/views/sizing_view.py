"""Displays the sizing of a job's rollout workers as tables and lines. Pure."""

from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from kubealign.bench.measurements import SizingMeasurements, StepShape
from kubealign.bench.sizing import Sizing
from kubealign.cli.terminal import escape_control
from kubealign.cli.views.job_table import new_table
from kubealign.planning.byte_units import format_bytes

#: Rows shown beyond the recommended number of workers, and beyond the job's own.
_EXTRA_ROWS = 2


def sizing_view(
    name: str, shape: StepShape, measurements: SizingMeasurements, sizing: Sizing
) -> list[RenderableType]:
    kind = f"asynchronous, maxStaleness {shape.staleness}" if shape.staleness else "synchronous"
    head = (
        f"{escape_control(name)}: {shape.prompts} prompts x {shape.samples} samples per step, {kind}; "
        f"responses of {measurements.mean_length:.0f} tokens, the longest {measurements.longest_length}; "
        f"{escape_control(measurements.source)}"
    )
    costs = [
        ("train", measurements.train_seconds),
        ("before training", measurements.before_seconds),
        ("score", measurements.score_seconds),
        ("reference scores", measurements.scoring_seconds),
        ("refit", measurements.refit_seconds),
        ("other", measurements.rest_seconds),
    ]
    cost_text = ", ".join(f"{label} {value:.2g} s" for label, value in costs if value)
    size = (
        "" if measurements.refit_bytes is None else f" (weights of {format_bytes(measurements.refit_bytes)})"
    )
    lines: list[RenderableType] = [
        Text(head, style="bold"),
        Text(f"step: {cost_text}{size}"),
        Text(f"worker: {_generation_rates(measurements)}"),
        _sizing_table(shape, sizing),
        Text(sizing.sentence, style="bold green" if sizing.enough else "bold yellow"),
    ]
    lines += [Text(f"assumed: {escape_control(text)}", style="dim") for text in measurements.assumed]
    lines.append(Text("assumed: each worker runs on a machine like the measured one", style="dim"))
    return lines


def sizing_document(
    name: str, shape: StepShape, measurements: SizingMeasurements, sizing: Sizing
) -> dict[str, Any]:
    """Return the sizing as a JSON document. Times are in seconds."""
    return {
        "job": name,
        "workers": sizing.workers,
        "enough": sizing.enough,
        "sentence": sizing.sentence,
        "maxStaleness": shape.staleness,
        "predicted": [
            {
                "workers": row.workers,
                "generateSeconds": row.generate,
                "stepSeconds": row.step,
                "trainerIdleShare": row.idle,
            }
            for row in sizing.rows
        ],
        "figures": measurements.model_dump(mode="json"),
    }


def _generation_rates(measurements: SizingMeasurements) -> str:
    rates = ", ".join(f"{running / seconds:,.0f} of {running}" for running, seconds in measurements.passes)
    rate = measurements.prompt_tokens_per_second
    return f"tokens per second, by concurrent sequences: {rates}" + (
        "" if rate is None else f"; prompt tokens {rate:,.0f}"
    )


def _sizing_table(shape: StepShape, sizing: Sizing) -> Table:
    result = new_table(["WORKERS", "GENERATE", "STEP", "TRAINER IDLE", ""], last_folds=False)
    until = max(sizing.workers, shape.replicas) + _EXTRA_ROWS
    for row in sizing.rows[:until]:
        marks = []
        if row.workers == sizing.workers:
            marks.append("enough" if sizing.enough else "at least")
        if row.workers == shape.replicas:
            marks.append("rollout.replicas")
        result.add_row(
            str(row.workers),
            f"{row.generate:.2f} s",
            f"{row.step:.2f} s",
            f"{100 * row.idle:.0f} %",
            ", ".join(marks),
            style="bold" if row.workers == sizing.workers else None,
        )
    return result
