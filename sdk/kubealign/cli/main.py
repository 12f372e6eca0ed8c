"""The `kubealign` command."""

from typing import Annotated

import typer

from kubealign import __version__
from kubealign.cli.run import run
from kubealign.cli.validate import validate

app = typer.Typer(
    name="kubealign",
    help="Align language models: one AlignmentJob, on this machine or on Kubernetes.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kubealign {__version__}")
        raise typer.Exit


@app.callback()
def kubealign(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Align language models: one AlignmentJob, on this machine or on Kubernetes."""


app.command()(validate)
app.command()(run)

if __name__ == "__main__":
    app()
