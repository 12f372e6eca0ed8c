"""`kubealign metrics`: shows a job's metrics by step."""

from fnmatch import fnmatchcase
from typing import Annotated, Any

import typer

from kubealign.cli.command import CommandContext, backend_command
from kubealign.cli.exit_codes import exit_with_error
from kubealign.cli.options import DataFormat, JobName
from kubealign.cli.output import format_json
from kubealign.cli.terminal import show

#: Metrics shown by default, if the job reports them.
_DEFAULT_METRICS = (
    "reward/mean",
    "kl/reference",
    "sft/loss",
    "rm/loss",
    "rm/accuracy",
    "policy/entropy",
    "trainer/gradient_norm",
    "response/length",
    "tokens_per_second",
    "seconds/step",
)


@backend_command
async def metrics(
    ctx: CommandContext,
    job: JobName,
    metric: Annotated[
        list[str],
        typer.Option(
            "--metric",
            "-f",
            "--figure",  # the former name
            metavar="NAME",
            help="Metric name or pattern, such as kl/reference or 'val/*'; may be repeated.",
            show_default=False,
        ),
    ] = [],  # noqa: B006 (typer copies it)
    last: Annotated[int, typer.Option("--last", min=0, help="Number of last steps; 0: all.")] = 20,
    output: Annotated[
        DataFormat,
        typer.Option(
            "--output", "-o", help="Output format; json and csv contain every metric unless some are named."
        ),
    ] = DataFormat.TABLE,
) -> None:
    """Show a job's metrics, one row per step. docs/metrics.md explains each metric."""
    ref = await ctx.ref(job)
    metrics_table = await ctx.client.metrics(ref.name, ref.namespace)
    rows, available = metrics_table.rows, metrics_table.columns
    if not rows:
        typer.echo(f"No metrics of {job} yet.", err=True)
        return
    names = _select_names(available, metric, select_all=output is not DataFormat.TABLE)
    shown = rows[-last:] if last else rows
    if output is DataFormat.JSON:
        typer.echo(
            format_json(
                [{"step": row["step"]} | {name: row[name] for name in names if name in row} for row in shown]
            )
        )
    elif output is DataFormat.CSV:
        _print_csv(shown, names)
    else:
        _print_table(ctx, shown, names)


def _select_names(columns: list[str], patterns: list[str], *, select_all: bool) -> list[str]:
    if not patterns:
        return (
            columns
            if select_all
            else [name for name in _DEFAULT_METRICS if name in columns] + _validation_names(columns)
        )
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in columns):
            from kubealign.spec.field_lookup import closest_name

            closest = closest_name(pattern, columns)
            guess = f"did you mean {closest}? " if closest else ""
            exit_with_error(f"the job has no metric {pattern}: {guess}it has {', '.join(sorted(columns))}")
    return list(dict.fromkeys(name for pattern in patterns for name in columns if fnmatchcase(name, pattern)))


def _validation_names(columns: list[str]) -> list[str]:
    """Return the two val/ metrics with the shortest names, which are not those of a single group."""
    names = [name for name in columns if name.startswith("val/")]
    return sorted(names, key=lambda name: (name.count("/"), len(name), name))[:2]


def _print_csv(rows: Any, names: list[str]) -> None:
    import csv
    import sys

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["step", *names])
    writer.writerows([row["step"], *(row.get(name, "") for name in names)] for row in rows)


def _print_table(ctx: CommandContext, rows: Any, names: list[str]) -> None:
    from kubealign.cli.views.job_table import format_number, new_table

    result = new_table(["STEP", *names], last_folds=False)
    for column in result.columns:
        column.justify = "right"
    for row in rows:
        result.add_row(str(row["step"]), *(format_number(row.get(name)) for name in names))
    show(ctx.console, result)
