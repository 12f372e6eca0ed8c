"""`kubealign run`: runs the jobs of a file on this machine."""

import asyncio
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from kubealign.cli.exit_codes import exit_on_error, exit_with_error
from kubealign.cli.options import MachineRunsDir, Overrides, Parameters, parse_parameters


def run(
    file: Annotated[Path, typer.Argument(metavar="FILE", show_default=False)],
    param: Parameters = [],  # noqa: B006 (typer copies it)
    set_: Overrides = [],  # noqa: B006
    runs_dir: MachineRunsDir = Path("runs"),
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Print the processes that would be started, without starting or writing anything.",
        ),
    ] = False,
    fresh: Annotated[
        bool,
        typer.Option(
            "--fresh", help="Delete earlier runs of these jobs, including their results, and start again."
        ),
    ] = False,
    page: Annotated[
        bool,
        typer.Option(
            "--dashboard/--no-dashboard",
            envvar="KUBEALIGN_RUN_DASHBOARD",
            help="Serve the dashboard of these runs while they run, and print its address.",
        ),
    ] = True,
) -> None:
    """Run a file's jobs on this machine, in the order of their dependencies.

    Ctrl-C stops gracefully; the same command resumes from the last checkpoint. Warnings and notes about the
    jobs (see validate) are printed first.
    """
    # Imported here, as in every command, so that other commands start faster.
    from rich.console import Console

    from kubealign.cli.views.spec_errors import print_notices
    from kubealign.local.display.terminal import display_for
    from kubealign.local.runner.admission import succeeded_in
    from kubealign.local.runner.dry_run import describe_plan
    from kubealign.local.runner.run_jobs import run_jobs
    from kubealign.local.servers.dashboard import dashboard_process
    from kubealign.spec.dependencies import order_by_dependencies
    from kubealign.spec.loading.loader import load_jobs

    runs_dir = runs_dir.absolute()
    with exit_on_error():
        loaded = load_jobs(file, parse_parameters(param), set_)
        jobs = order_by_dependencies(loaded, succeeded_in(runs_dir))
        print_notices(file, loaded)
        if dry_run:
            for line in describe_plan(jobs):
                typer.echo(line)
            return
        try:
            display = display_for(Console())
            beside = partial(dashboard_process, runs_dir, display.show_message) if page else nullcontext
            code = asyncio.run(run_jobs(jobs, runs_dir, fresh, display, background=beside))
        except OSError as error:
            exit_with_error(f"the run directory cannot be used: {error}")
    raise typer.Exit(code)
