"""`kubealign metrics`: shows a job's metrics by step."""

from fnmatch import fnmatchcase
from typing import Annotated, Any

import typer

from kubealign.cli.command import Here, asks_site
from kubealign.cli.exits import refuse
from kubealign.cli.options import DataFormat, JobName
from kubealign.cli.printing import as_json
from kubealign.cli.terminal import show

#: Metrics shown by default, if the job reports them.
_USUAL = (
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


@asks_site
async def metrics(
    here: Here,
    job: JobName,
    figure: Annotated[
        list[str],
        typer.Option(
            "--figure",
            "-f",
            metavar="NAME",
            help="Metric name or pattern, such as kl/reference or 'val/*'; may be repeated.",
            show_default=False,
        ),
    ] = [],  # noqa: B006 (typer copies it)
    last: Annotated[int, typer.Option("--last", min=0, help="Number of last steps; 0: all.")] = 20,
    output: Annotated[
        DataFormat,
        typer.Option("--output", "-o", help="Output format; json and csv contain every metric unless some are named."),
    ] = DataFormat.TABLE,
) -> None:
    """Show a job's metrics, one row per step. docs/metrics.md explains each metric."""
    ref = await here.ref(job)
    metrics_table = await here.client.metrics(ref.name, ref.namespace)
    rows, available = metrics_table.rows, metrics_table.columns
    if not rows:
        typer.echo(f"No metrics of {job} yet.", err=True)
        return
    names = _chosen(available, figure, whole=output is not DataFormat.TABLE)
    shown = rows[-last:] if last else rows
    if output is DataFormat.JSON:
        typer.echo(
            as_json(
                [{"step": row["step"]} | {name: row[name] for name in names if name in row} for row in shown]
            )
        )
    elif output is DataFormat.CSV:
        _csv(shown, names)
    else:
        _table(here, shown, names)


def _chosen(there: list[str], patterns: list[str], *, whole: bool) -> list[str]:
    if not patterns:
        return there if whole else [name for name in _USUAL if name in there] + _validated(there)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in there):
            from kubealign.spec.fields import nearest

            closest = nearest(pattern, there)
            guess = f"did you mean {closest}? " if closest else ""
            refuse(f"the job has no metric {pattern}: {guess}it has {', '.join(sorted(there))}")
    return list(dict.fromkeys(name for pattern in patterns for name in there if fnmatchcase(name, pattern)))


def _validated(there: list[str]) -> list[str]:
    """Return the two val/ metrics with the shortest names, which are not those of a single group."""
    names = [name for name in there if name.startswith("val/")]
    return sorted(names, key=lambda name: (name.count("/"), len(name), name))[:2]


def _csv(rows: Any, names: list[str]) -> None:
    import csv
    import sys

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["step", *names])
    writer.writerows([row["step"], *(row.get(name, "") for name in names)] for row in rows)


def _table(here: Here, rows: Any, names: list[str]) -> None:
    from kubealign.cli.job_table import number, table

    result = table(["STEP", *names], last_folds=False)
    for column in result.columns:
        column.justify = "right"
    for row in rows:
        result.add_row(str(row["step"]), *(number(row.get(name)) for name in names))
    show(here.console, result)
