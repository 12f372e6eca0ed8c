"""Entry points: the `kubealign` command, and the kubectl plugin `kubectl align` with the same commands."""

import os
import shlex
import sys
from collections.abc import Callable
from typing import Annotated

import typer
from typer.completion import completion_init  # type: ignore[attr-defined]

from kubealign import __version__
from kubealign.cli.commands.jobs.call import call
from kubealign.cli.commands.jobs.debug import debug
from kubealign.cli.commands.jobs.fork import fork
from kubealign.cli.commands.jobs.labels import labels
from kubealign.cli.commands.jobs.lifecycle import delete, resume, retry, scale, suspend
from kubealign.cli.commands.jobs.list_jobs import describe, get, list_jobs
from kubealign.cli.commands.jobs.logs import events, logs
from kubealign.cli.commands.jobs.metrics import metrics
from kubealign.cli.commands.jobs.push import push
from kubealign.cli.commands.jobs.result import result
from kubealign.cli.commands.jobs.samples import samples
from kubealign.cli.commands.jobs.submit import submit
from kubealign.cli.commands.jobs.top import top
from kubealign.cli.commands.jobs.wait import wait
from kubealign.cli.commands.machine.bench import bench
from kubealign.cli.commands.machine.dashboard import dashboard
from kubealign.cli.commands.machine.doctor import doctor
from kubealign.cli.commands.machine.evaluate import evaluate
from kubealign.cli.commands.machine.export import export
from kubealign.cli.commands.machine.pin import pin, unpin
from kubealign.cli.commands.machine.plot import plot
from kubealign.cli.commands.machine.replay import replay
from kubealign.cli.commands.machine.run import run
from kubealign.cli.commands.spec.explain import explain
from kubealign.cli.commands.spec.init import init
from kubealign.cli.commands.spec.plan import plan
from kubealign.cli.commands.spec.validate import validate
from kubealign.cli.completion import completion

# Directive of cobra's shell completion, which kubectl uses: no file completion.
_NO_FILES = ":4"

app = typer.Typer(
    name="kubealign",
    help="Align language models: one AlignmentJob, on this machine or on Kubernetes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(requested: bool) -> None:
    if requested:
        typer.echo(f"kubealign {__version__}")
        raise typer.Exit


@app.callback()
def kubealign(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Align language models: one AlignmentJob, on this machine or on Kubernetes."""


#: Commands by help panel, in display order.
COMMANDS: dict[str, dict[str, Callable[..., None]]] = {
    "Write a job": {"init": init, "explain": explain, "validate": validate, "plan": plan},
    "Run it": {
        "run": run,
        "submit": submit,
        "fork": fork,
        "wait": wait,
        "result": result,
        "push": push,
        "replay": replay,
        "export": export,
        "evaluate": evaluate,
    },
    "Observe it": {
        "list": list_jobs,
        "get": get,
        "describe": describe,
        "top": top,
        "logs": logs,
        "metrics": metrics,
        "plot": plot,
        "samples": samples,
        "labels": labels,
        "events": events,
        "debug": debug,
        "call": call,
        "dashboard": dashboard,
    },
    "Change it": {
        "scale": scale,
        "suspend": suspend,
        "resume": resume,
        "retry": retry,
        "pin": pin,
        "unpin": unpin,
        "delete": delete,
    },
    "This machine and the cluster": {"doctor": doctor, "bench": bench, "completion": completion},
}
for _panel, _commands in COMMANDS.items():
    for _name, _command in _commands.items():
        app.command(_name, rich_help_panel=_panel)(_command)
app.command("ls", hidden=True)(list_jobs)
# Registers the completion handlers that the scripts printed by `completion` call.
completion_init()


def plugin() -> None:
    """Run `kubectl align ...`, which kubectl calls as kubectl-align."""
    app(prog_name="kubectl align")


def plugin_completion() -> None:
    """Complete `kubectl align`: print one word per line, then a directive (no file completion)."""
    words = ["kubealign", *sys.argv[1:]]
    os.environ |= {
        "_KUBEALIGN_COMPLETE": "complete_bash",
        "COMP_WORDS": shlex.join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    try:
        app(prog_name="kubealign")
    finally:
        typer.echo(_NO_FILES)


if __name__ == "__main__":
    app(prog_name="kubealign")
