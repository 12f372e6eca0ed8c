"""`kubealign run`: the jobs of a file on this machine."""

import asyncio
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

from kubealign.cli.options import Overrides, Parameters, parameters
from kubealign.cli.report import show_errors
from kubealign.local.admission import has_succeeded
from kubealign.local.display import display_for
from kubealign.local.dry_run import plan
from kubealign.local.failure import RunFailed
from kubealign.local.run_jobs import run_jobs
from kubealign.spec.dependencies import order
from kubealign.spec.errors import SpecErrors
from kubealign.spec.load import load_jobs


def run(
    file: Annotated[Path, typer.Argument(metavar="FILE", show_default=False)],
    param: Parameters = [],  # noqa: B006 (typer copies it)
    set_: Overrides = [],  # noqa: B006
    runs_dir: Annotated[
        Path, typer.Option("--runs-dir", help="Where each job has its folder.", metavar="FOLDER")
    ] = Path("runs"),
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Print the processes that would be started; start and write nothing."),
    ] = False,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh", help="Delete earlier runs of these jobs, with their results, and start again."
        ),
    ] = False,
) -> None:
    """Run a file's jobs on this machine, each after those that it depends on.

    Ctrl-C stops in good order; the same command goes on from there.
    """
    runs_dir = runs_dir.absolute()
    try:
        jobs = order(load_jobs(file, parameters(param), set_), has_succeeded(runs_dir))
    except SpecErrors as errors:
        show_errors(errors.errors)
        raise typer.Exit(1) from None
    except RunFailed as refusal:
        _refuse(str(refusal))
    if dry_run:
        for line in plan(jobs):
            typer.echo(line)
        return
    try:
        code = asyncio.run(run_jobs(jobs, runs_dir, fresh, display_for(Console())))
    except RunFailed as refusal:
        _refuse(str(refusal))
    except OSError as error:
        _refuse(f"the run's folder cannot be used: {error}")
    raise typer.Exit(code)


def _refuse(message: str) -> NoReturn:
    Console(stderr=True).print(message, style="red", soft_wrap=True, markup=False, highlight=False)
    raise typer.Exit(1)
