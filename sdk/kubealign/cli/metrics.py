"""`kubealign metrics`: a job's figures, step by step."""

from fnmatch import fnmatchcase
from typing import Annotated, Any

import typer

from kubealign.cli.command import Here, asks_site
from kubealign.cli.exits import refuse
from kubealign.cli.options import DataFormat, JobName
from kubealign.cli.printing import as_json
from kubealign.cli.terminal import show

#: What is shown where nothing is asked for, if the job has it.
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
            help="Such as kl/reference or 'val/*'; may be repeated.",
            show_default=False,
        ),
    ] = [],  # noqa: B006 (typer copies it)
    last: Annotated[int, typer.Option("--last", min=0, help="The last steps alone, this many; 0: all.")] = 20,
    output: Annotated[
        DataFormat,
        typer.Option("--output", "-o", help="json and csv hold every figure unless some are named."),
    ] = DataFormat.TABLE,
) -> None:
    """Show a job's figures, one row a step. What each means: docs/metrics.md."""
    ref = await here.ref(job)
    figures = await here.client.metrics(ref.name, ref.namespace)
    rows, there = figures.rows, figures.columns
    if not rows:
        typer.echo(f"No figures of {job} yet.", err=True)
        return
    names = _chosen(there, figure, whole=output is not DataFormat.TABLE)
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

            meant = nearest(pattern, there)
            guess = f"did you mean {meant}? " if meant else ""
            refuse(f"the job has no figure {pattern}: {guess}it has {', '.join(sorted(there))}")
    return list(dict.fromkeys(name for pattern in patterns for name in there if fnmatchcase(name, pattern)))


def _validated(there: list[str]) -> list[str]:
    """The two val/ figures with the shortest names: those that are not of a group."""
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

    made = table(["STEP", *names], last_folds=False)
    for column in made.columns:
        column.justify = "right"
    for row in rows:
        made.add_row(str(row["step"]), *(number(row.get(name)) for name in names))
    show(here.console, made)
