"""`kubealign dashboard`: the page over this machine's runs."""

import importlib
from pathlib import Path
from typing import Annotated

import typer

from kubealign.cli.where import RUNS_DIR

# Named, not imported: the sdk does not know the services.
_SERVER = "kubealign_services.dashboard.serve"


def dashboard(
    runs_dir: Annotated[
        Path, typer.Option("--runs-dir", envvar=RUNS_DIR, metavar="FOLDER", help="Where the runs are.")
    ] = Path("runs"),
    host: Annotated[
        str,
        typer.Option(
            "--host",
            metavar="ADDRESS",
            help="Where it listens; another than this machine's own is seen by others.",
        ),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65_535, help="0: a free one.")] = 0,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the address alone.")] = False,
) -> None:
    """Open the page about the runs of this machine, until Ctrl-C.

    A cluster's is a Service of the chart: kubectl port-forward -n kubealign-system svc/kubealign-dashboard
    """
    from kubealign.cli.exits import refuse, told

    try:
        serve = importlib.import_module(_SERVER)
    except ModuleNotFoundError as error:
        refuse(
            f"the dashboard needs {error.name}, which is not installed: pip install 'kubealign[dashboard]'"
        )
    with told():
        raise typer.Exit(serve.serve_local(runs_dir.absolute(), host, port, not no_browser))
