"""`kubealign submit`: submits the jobs of a file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kubealign.cli.command import Here, asks_site
from kubealign.cli.exits import ExitCode, refuse
from kubealign.cli.options import Format, Output, Overrides, Parameters, parameters
from kubealign.cli.printing import print_document, print_list

if TYPE_CHECKING:
    from kubealign.spec.job import AlignmentJob


@asks_site
async def submit(
    here: Here,
    file: Annotated[Path, typer.Argument(metavar="FILE", show_default=False)],
    param: Parameters = [],  # noqa: B006 (typer copies it)
    set_: Overrides = [],  # noqa: B006
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Validate the jobs at their target; nothing is stored or started.")
    ] = False,
    output: Output = Format.TABLE,
) -> None:
    """Submit a file's jobs and return. They run on the cluster, or on this machine in the background.

    A job that depends on another one waits for it.
    """
    from kubealign.spec.dependencies import order
    from kubealign.spec.load import load_jobs

    jobs = order(load_jobs(file, parameters(param), set_), finished=lambda name: True)
    records = [
        await here.site.create(_document(job, here.where.namespace, here.namespace), dry_run=dry_run)
        for job in jobs
    ]
    if output in (Format.TABLE, Format.WIDE):
        for record in records:
            typer.echo(
                f"{record.name}: {'valid' if dry_run else 'submitted'}" + (" (dry run)" if dry_run else "")
            )
    elif len(records) == 1:
        print_document(records[0], output)
    else:
        print_list(records, output)


def _document(job: "AlignmentJob", asked: str | None, default: str) -> dict[str, Any]:
    """Return the job's document with its namespace. Exits if -n and the file name different namespaces."""
    from kubealign.client.handing_in import document_of

    document = document_of(job)
    own = document["metadata"].get("namespace")
    if own is not None and asked is not None and own != asked:
        refuse(f"{job.name} has namespace {own} in its file, and -n is {asked}: remove one", ExitCode.USAGE)
    document["metadata"]["namespace"] = own or asked or default
    return document
