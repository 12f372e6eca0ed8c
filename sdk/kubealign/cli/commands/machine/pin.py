"""`kubealign pin` and `kubealign unpin`: keep a checkpoint of a run on this machine, whatever its age."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from kubealign.cli.completion import complete_job_names
from kubealign.cli.exit_codes import CliExitCode, exit_on_error, exit_with_error
from kubealign.cli.options import MachineRunsDir

if TYPE_CHECKING:
    from kubealign.local.run_dir.layout import RunDirectory

_Run: TypeAlias = Annotated[
    str, typer.Argument(metavar="RUN", show_default=False, autocompletion=complete_job_names)
]
_Step: TypeAlias = Annotated[
    int, typer.Option("--at", metavar="STEP", min=1, help="Step of the checkpoint.", show_default=False)
]


def pin(run: _Run, at: _Step, runs_dir: MachineRunsDir = Path("runs")) -> None:
    """Keep a checkpoint of a run of this machine: its retention never removes it, nor its copy.

    RUN is a run directory, or the name of one in --runs-dir; it may be running. `kubealign describe` lists
    the checkpoints with their sizes and pins.
    """
    from kubealign.local.checkpoints import pin_checkpoint

    _change_pin(pin_checkpoint, run, at, runs_dir)
    typer.echo(f"{run}: the checkpoint of step {at} is pinned")


def unpin(run: _Run, at: _Step, runs_dir: MachineRunsDir = Path("runs")) -> None:
    """Remove the pin of a checkpoint, which the next checkpoint removes unless it is among those to keep."""
    from kubealign.local.checkpoints import unpin_checkpoint

    _change_pin(unpin_checkpoint, run, at, runs_dir)
    typer.echo(f"{run}: the checkpoint of step {at} is not pinned any more")


def _change_pin(change: "Callable[[RunDirectory, int], None]", run: str, step: int, runs_dir: Path) -> None:
    from kubealign.local.errors import RunRefused
    from kubealign.local.evaluation import find_run
    from kubealign.local.runner.admission import run_directory

    with exit_on_error():
        try:
            root = runs_dir.absolute()
            change(find_run(run, root) or run_directory(root, run), step)
        except RunRefused as error:
            exit_with_error(str(error), CliExitCode.USAGE)
        except OSError as error:
            exit_with_error(f"the pin cannot be changed: {error}")
