"""`kubealign export`: writes the model of any checkpoint of a run as a Hugging Face folder."""

from pathlib import Path
from typing import Annotated

import typer

from kubealign.cli.completion import complete_job_names
from kubealign.cli.exit_codes import CliExitCode, exit_on_error, exit_with_error
from kubealign.cli.options import MachineRunsDir


def export(
    run: Annotated[str, typer.Argument(metavar="RUN", show_default=False, autocompletion=complete_job_names)],
    step: Annotated[
        int,
        typer.Option(
            "--step",
            min=0,
            help="Step of a checkpoint; 0: the weights with which the run began.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="Folder to write.", show_default=False)
    ],
    runs_dir: MachineRunsDir = Path("runs"),
) -> None:
    """Write the model of a step of a run of this machine as a Hugging Face folder, like the run's result.

    The trainer's own processes load the checkpoint and write the model, with a LoRA merged and its adapter
    beside it. RUN is a run directory, or the name of one in --runs-dir; it is only read. In a cluster, a job
    with checkpoint.from and maxSteps of the same step writes the model as its result.
    """
    from rich.console import Console

    from kubealign.local.display.terminal import display_for
    from kubealign.local.errors import RunRefused
    from kubealign.local.evaluation import find_run
    from kubealign.local.export import export_model
    from kubealign.local.runner.admission import run_directory
    from kubealign.replay.plan import ReplayError

    with exit_on_error():
        try:
            root = runs_dir.absolute()
            source = find_run(run, root) or run_directory(root, run)
            target = out.absolute()
            code = export_model(source, step, target, display_for(Console(stderr=True)))
        except (ReplayError, RunRefused) as error:
            exit_with_error(str(error), CliExitCode.USAGE)
        except OSError as error:
            exit_with_error(f"the model cannot be written: {error}")
    if code != 0:
        raise typer.Exit(code)
    typer.echo(f"{run}, step {step}: {target}")
