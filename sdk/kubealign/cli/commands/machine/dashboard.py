"""`kubealign dashboard`: serves the dashboard over this machine's runs."""

import importlib
from pathlib import Path
from typing import Annotated

import typer

from kubealign.cli.options import MachineRunsDir

# Imported by name, because the SDK must not depend on the services.
_SERVER = "kubealign_dashboard.local.serve"


def dashboard(
    runs_dir: MachineRunsDir = Path("runs"),
    host: Annotated[
        str,
        typer.Option(
            "--host",
            metavar="ADDRESS",
            help="Address to listen on; any address but the loopback is reachable by others.",
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", min=0, max=65_535, help="Port to listen on; 0 selects a free one.")
    ] = 0,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Only print the address.")] = False,
) -> None:
    """Serve the dashboard of this machine's runs until Ctrl-C.

    A cluster's dashboard is a Service of the chart: kubectl port-forward -n kubealign-system
    svc/kubealign-dashboard
    """
    from kubealign.cli.exit_codes import exit_on_error, exit_with_error

    try:
        serve = importlib.import_module(_SERVER)
    except ModuleNotFoundError as error:
        exit_with_error(
            f"the dashboard needs {error.name}, which is not installed: pip install 'kubealign[dashboard]'"
        )
    with exit_on_error():
        raise typer.Exit(serve.serve_local(runs_dir.absolute(), host, port, not no_browser))
