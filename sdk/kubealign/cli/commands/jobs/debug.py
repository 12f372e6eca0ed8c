"""`kubealign debug`."""

from pathlib import Path
from typing import Annotated

import typer

from kubealign.cli.command import CommandContext, backend_command
from kubealign.cli.options import JobName


@backend_command
async def debug(
    ctx: CommandContext,
    job: JobName,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Archive to write; JOB-debug.tar.gz by default.",
            show_default=False,
        ),
    ] = None,
    tail: Annotated[
        int,
        typer.Option("--tail", metavar="LINES", min=0, help="Last lines of each process's log."),
    ] = 5000,
) -> None:
    """Collect what a bug report about a job needs in one archive.

    The archive has the job with its status, its pods, processes, events, metrics and logs, also those of the
    last failed attempts. Values of environment variables are removed; look through the logs yourself before
    you send them to others.
    """
    from kubealign.client.errors import NotPossible
    from kubealign.diagnostics.job_report import collect_report, write_archive

    path = output or Path(f"{job}-debug.tar.gz")
    if path.exists():
        raise NotPossible(f"--output is {path}, which exists: remove it, or name another file")
    files = await collect_report(ctx.backend, await ctx.ref(job), tail)
    try:
        write_archive(path, f"{job}-debug", files)
    except OSError as error:
        raise NotPossible(f"--output is {path}, which cannot be written: {error.strerror}") from error
    typer.echo(str(path))
    if "errors.txt" in files:
        ctx.console.print(f"[yellow]not collected:[/yellow]\n{files['errors.txt'].decode()}", end="")
