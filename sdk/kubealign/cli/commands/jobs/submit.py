"""`kubealign submit`: submits the jobs of a file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kubealign.cli.command import CommandContext, backend_command
from kubealign.cli.exit_codes import CliExitCode, exit_with_error
from kubealign.cli.options import Output, OutputFormat, Overrides, Parameters, parse_parameters
from kubealign.cli.output import print_document, print_list

if TYPE_CHECKING:
    from kubealign.spec.job import AlignmentJob


@backend_command
async def submit(
    ctx: CommandContext,
    file: Annotated[Path, typer.Argument(metavar="FILE", show_default=False)],
    param: Parameters = [],  # noqa: B006 (typer copies it)
    set_: Overrides = [],  # noqa: B006
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Validate the jobs at their target; nothing is stored or started."),
    ] = False,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Submit a file's jobs and return. They run on the cluster, or on this machine in the background.

    A job that depends on another one waits for it. Warnings and notes about the jobs (see validate) are
    printed first.
    """
    from kubealign.cli.views.spec_errors import print_notices
    from kubealign.spec.dependencies import order_by_dependencies
    from kubealign.spec.loading.loader import load_jobs

    loaded = load_jobs(file, parse_parameters(param), set_)
    jobs = order_by_dependencies(loaded, finished=lambda name: True)
    print_notices(file, loaded)
    records = [
        await ctx.backend.create(
            _document_in_namespace(job, ctx.target.namespace, ctx.namespace), dry_run=dry_run
        )
        for job in jobs
    ]
    if output in (OutputFormat.TABLE, OutputFormat.WIDE):
        for record in records:
            typer.echo(
                f"{record.name}: {'valid' if dry_run else 'submitted'}" + (" (dry run)" if dry_run else "")
            )
    elif len(records) == 1:
        print_document(records[0], output)
    else:
        print_list(records, output)


def _document_in_namespace(job: "AlignmentJob", requested: str | None, default: str) -> dict[str, Any]:
    """Return the job's document with its namespace. Exits if -n and the file name different namespaces."""
    from kubealign.client.submission import to_document

    document = to_document(job)
    own = document["metadata"].get("namespace")
    if own is not None and requested is not None and own != requested:
        exit_with_error(
            f"{job.name} has namespace {own} in its file, and -n is {requested}: remove one",
            CliExitCode.USAGE,
        )
    document["metadata"]["namespace"] = own or requested or default
    return document
