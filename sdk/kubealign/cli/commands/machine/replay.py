"""`kubealign replay`: repeats the training of a recorded run and compares the metrics."""

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from kubealign.cli.completion import complete_job_names
from kubealign.cli.exit_codes import CliExitCode, exit_on_error, exit_with_error
from kubealign.cli.options import MachineRunsDir, Overrides


def replay(
    run: Annotated[str, typer.Argument(metavar="RUN", show_default=False, autocompletion=complete_job_names)],
    set_: Overrides = [],  # noqa: B006 (typer copies it)
    from_step: Annotated[
        int,
        typer.Option(
            "--from-step",
            min=1,
            help="First step to train again; above 1, a checkpoint of the previous step is required.",
        ),
    ] = 1,
    steps: Annotated[
        int | None,
        typer.Option("--steps", min=1, help="Number of steps; default: all that follow.", show_default=False),
    ] = None,
    runs_dir: MachineRunsDir = Path("runs"),
    name: Annotated[
        str | None,
        typer.Option(
            "--name", metavar="NAME", help="Name of the new run; default: RUN-replay.", show_default=False
        ),
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Delete an earlier run of this name, and start again.")
    ] = False,
    tolerance: Annotated[
        float,
        typer.Option(
            "--tolerance", min=0, help="Largest relative difference of a metric that counts as rounding."
        ),
    ] = 1e-4,
) -> None:
    """Train again on the batches recorded by a run of this machine, and compare the metrics of every step.

    Requires checkpoint.recordBatches in the run. Trainer and critic are real services; nothing is sampled.
    With --set, such as another learning rate on the same samples, differences are shown and are not a
    failure.

    Exit code 0: all metrics are equal, or differ by rounding; 1: they differ; 2: the run cannot be
    replayed.
    """
    from rich.console import Console

    from kubealign.cli.terminal import console, show
    from kubealign.cli.views.replay_view import ReplayOutcome, replay_view
    from kubealign.local.display.terminal import display_for
    from kubealign.local.errors import RunRefused
    from kubealign.local.replay import (
        create_replay_folder,
        has_same_weights,
        metrics_by_step,
        plan_replay,
        trainer_threads,
    )
    from kubealign.local.runner.run_jobs import INTERRUPTED, run_jobs
    from kubealign.replay.comparison import compare_runs
    from kubealign.replay.plan import ReplayError

    with exit_on_error():
        try:
            replay_plan = plan_replay(
                runs_dir.absolute(), run, name or f"{run}-replay", from_step, steps, set_
            )
            create_replay_folder(replay_plan, fresh)
            code = asyncio.run(
                run_jobs([replay_plan.job], runs_dir.absolute(), False, display_for(Console(stderr=True)))
            )
        except (ReplayError, RunRefused) as error:
            exit_with_error(str(error), CliExitCode.USAGE)
        except OSError as error:
            exit_with_error(f"the run directory cannot be used: {error}", CliExitCode.USAGE)
        if code == INTERRUPTED:
            raise typer.Exit(code)
        steps_to_compare = range(replay_plan.replay.first_step, replay_plan.replay.last_step + 1)
        replayed = {
            step: line
            for step, line in metrics_by_step(replay_plan.folder).items()
            if step in steps_to_compare
        }
        outcome = ReplayOutcome(
            comparison=compare_runs(metrics_by_step(replay_plan.recorded), replayed),
            requested_steps=len(steps_to_compare),
            tolerance=tolerance,
            spec_was_modified=replay_plan.is_changed,
            weights_equal=has_same_weights(replay_plan) if code == 0 else None,
            threads=(trainer_threads(replay_plan.recorded), trainer_threads(replay_plan.folder)),
        )
    show(console(), *replay_view(outcome))
    if code != 0 or not outcome.has_passed:
        raise typer.Exit(CliExitCode.FAILED)
