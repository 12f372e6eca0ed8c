"""`kubealign call`: calls a gRPC method of a process of a running job."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from kubealign.cli.command import CommandContext, backend_command
from kubealign.cli.completion import complete_process_names
from kubealign.cli.exit_codes import CliExitCode, exit_with_error
from kubealign.cli.options import JobName
from kubealign.cli.output import format_json

_STDIN = "-"


@backend_command
async def call(
    ctx: CommandContext,
    job: JobName,
    process: Annotated[
        str,
        typer.Argument(
            metavar="PROCESS",
            show_default=False,
            autocompletion=complete_process_names,
            help="Process, such as rollout-1, or a role: its first process.",
        ),
    ],
    method: Annotated[
        str | None,
        typer.Argument(metavar="[METHOD]", show_default=False, help="Method, such as Score or Reward.Score."),
    ] = None,
    list_: Annotated[
        bool,
        typer.Option("--list", help="List the methods of the process and the fields of requests."),
    ] = False,
    request: Annotated[
        str | None,
        typer.Option(
            "--request", metavar="JSON", help="Request as JSON; default: an empty one.", show_default=False
        ),
    ] = None,
    request_file: Annotated[
        Path | None,
        typer.Option(
            "--request-file",
            metavar="FILE",
            help="File with the request as JSON; -: stdin.",
            allow_dash=True,
            show_default=False,
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", min=0.001, help="Deadline of the call.")
    ] = 60.0,
) -> None:
    """Call a gRPC method of a process of a running job of this machine, and print its replies as JSON.

    For debugging: a call has the same effect as one by the job's own processes, whose certificates in the
    run directory it uses. Each reply of a stream is one line. Jobs in a cluster cannot be called.
    """
    from kubealign.client.errors import NotPossible

    if (method is None) != list_:
        raise typer.BadParameter("give either the METHOD to call or --list", param_hint="METHOD")
    if request is not None and request_file is not None:
        raise typer.BadParameter("--request and --request-file exclude each other", param_hint="--request")
    runs_folder = ctx.target.runs_folder
    if runs_folder is None:
        raise NotPossible(
            "call works for jobs of this machine (--local or --runs-dir FOLDER): processes in a cluster "
            "accept calls of their own job's pods only"
        )
    try:
        from kubealign.client.process_calls.local_process import locate_process
        from kubealign.client.process_calls.methods import MalformedRequest, find_method, reply_to_json
        from kubealign.client.process_calls.process_client import ProcessClient
    except ModuleNotFoundError as error:
        exit_with_error(f"calls need {error.name}, which is not installed: pip install 'kubealign[services]'")
    target = await locate_process(ctx.backend, runs_folder, await ctx.ref(job), process)
    client = ProcessClient(target)
    methods = await client.methods(timeout)
    if method is None:
        typer.echo("\n".join(served.describe() for served in methods))
        return
    selected = find_method(target.name, methods, method)
    try:
        message = selected.parse_request(request or _read_request(request_file))
    except MalformedRequest as error:
        exit_with_error(str(error), CliExitCode.USAGE)
    async for reply in client.call(selected, message, timeout):
        typer.echo(format_json(reply_to_json(reply), indent=None if selected.streams else 2))


def _read_request(path: Path | None) -> str:
    """Return the content of the file, or of stdin; empty without a file."""
    if path is None:
        return ""
    try:
        return sys.stdin.read() if str(path) == _STDIN else path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        exit_with_error(f"{path} cannot be read: {error}", CliExitCode.USAGE)
