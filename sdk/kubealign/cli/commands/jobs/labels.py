"""`kubealign labels`: exports the labels that people gave to a job's responses."""

from pathlib import Path
from typing import Annotated

import typer

from kubealign.cli.command import CommandContext, backend_command
from kubealign.cli.exit_codes import CliExitCode, exit_with_error
from kubealign.cli.options import JobName
from kubealign.human_labels import LabelFormat, export_labels


@backend_command
async def labels(
    ctx: CommandContext,
    job: JobName,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="FILE", help="File to write; default: standard output.", show_default=False
        ),
    ] = None,
    form: Annotated[
        LabelFormat,
        typer.Option(
            "--format",
            help="preferences: rows for data.preferences; unpaired: rows for data.unpaired; labels: the "
            "labels with author, time and reason.",
        ),
    ] = LabelFormat.PREFERENCES,
) -> None:
    """Export the labels that people gave in the dashboard, as training rows in JSON lines."""
    text = export_labels(await ctx.backend.labels(await ctx.ref(job)), form)
    count = text.count("\n")
    if out is None:
        typer.echo(text, nl=False)
    else:
        try:
            out.write_bytes(text.encode(errors="replace"))
        except OSError as error:
            exit_with_error(f"--out {out} cannot be written: {error.strerror or error}", CliExitCode.USAGE)
    typer.echo(f"{count} rows of {job}" + (f" in {out}" if out is not None and count else ""), err=True)
