"""`kubealign replay`: what a run was trained on, trained on again."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from kubealign.cli.completion import job_names
from kubealign.cli.exits import ExitCode, refuse, told
from kubealign.cli.options import Overrides
from kubealign.cli.where import RUNS_DIR


def replay(
    run: Annotated[str, typer.Argument(metavar="RUN", show_default=False, autocompletion=job_names)],
    set_: Overrides = [],  # noqa: B006 (typer copies it)
    from_step: Annotated[
        int,
        typer.Option(
            "--from-step",
            min=1,
            help="The first step that is trained again; above 1 there must be a commit of the step before.",
        ),
    ] = 1,
    steps: Annotated[
        int | None, typer.Option("--steps", min=1, help="So many; else all that follow.", show_default=False)
    ] = None,
    runs_dir: Annotated[
        Path,
        typer.Option("--runs-dir", envvar=RUNS_DIR, help="Where each job has its folder.", metavar="FOLDER"),
    ] = Path("runs"),
    name: Annotated[
        str | None,
        typer.Option("--name", metavar="NAME", help="Of the new run; else RUN-replay.", show_default=False),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Delete an earlier run of this name, and start again.")
    ] = False,
    tolerance: Annotated[
        float,
        typer.Option("--tolerance", min=0, help="Relative difference of a figure that is still rounding."),
    ] = 1e-4,
) -> None:
    """Train again on the batches that a run of this machine has recorded, and compare every step's figures.

    For runs with checkpoint.recordBatches. Trainer and critic are real services; nothing is sampled.
    With --set, as in another learning rate on the same samples, differences are shown and are no failure.

    Exit code 0: all figures are equal, or differ by rounding; 1: they differ; 2: it cannot be replayed.
    """
    from rich.console import Console

    from kubealign.cli.replay_view import Verdict, replay_view
    from kubealign.cli.terminal import console, show
    from kubealign.local.display import display_for
    from kubealign.local.failure import RunRefused
    from kubealign.local.replay_run import figures_of, make_folder, plan_replay, same_weights, threads_of
    from kubealign.local.run_jobs import INTERRUPTED, run_jobs
    from kubealign.replay.comparison import compare
    from kubealign.replay.errors import CannotReplay

    with told():
        try:
            planned = plan_replay(runs_dir.absolute(), run, name or f"{run}-replay", from_step, steps, set_)
            make_folder(planned, fresh)
            code = asyncio.run(
                run_jobs([planned.job], runs_dir.absolute(), False, display_for(Console(stderr=True)))
            )
        except (CannotReplay, RunRefused) as error:
            refuse(str(error), ExitCode.USAGE)
        except OSError as error:
            refuse(f"the run's folder cannot be used: {error}", ExitCode.USAGE)
        if code == INTERRUPTED:
            raise typer.Exit(code)
        again = range(planned.replay.first_step, planned.replay.last_step + 1)
        replayed = {step: line for step, line in figures_of(planned.folder).items() if step in again}
        verdict = Verdict(
            comparison=compare(figures_of(planned.recorded), replayed),
            asked=len(again),
            tolerance=tolerance,
            changed=planned.changed,
            weights=same_weights(planned) if code == 0 else None,
            threads=(threads_of(planned.recorded), threads_of(planned.folder)),
        )
    show(console(), *replay_view(verdict))
    if code != 0 or not verdict.passed:
        raise typer.Exit(ExitCode.FAILED)
