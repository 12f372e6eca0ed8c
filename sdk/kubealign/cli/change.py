"""`kubealign scale`, `suspend`, `resume` and `delete`: change existing jobs."""

import sys
from typing import Annotated

import typer

from kubealign.cli.command import Here, asks_site
from kubealign.cli.exits import ExitCode
from kubealign.cli.options import JobName, JobNames


@asks_site
async def scale(
    here: Here,
    job: JobName,
    replicas: Annotated[int, typer.Argument(metavar="REPLICAS", min=0, show_default=False)],
) -> None:
    """Set the number of rollout workers of a running job."""
    await here.site.scale(await here.ref(job), replicas)
    workers = "1 rollout worker" if replicas == 1 else f"{replicas} rollout workers"
    typer.echo(f"{job}: {workers}")


@asks_site
async def suspend(here: Here, jobs: JobNames) -> None:
    """Save a checkpoint, stop, and release processes and accelerators."""
    for name in jobs:
        await here.site.suspend(await here.ref(name), True)
        typer.echo(f"{name}: suspending; resume with: kubealign resume {name}")


@asks_site
async def resume(here: Here, jobs: JobNames) -> None:
    """Resume from the last checkpoint."""
    for name in jobs:
        await here.site.suspend(await here.ref(name), False)
        typer.echo(f"{name}: resuming")


@asks_site
async def delete(
    here: Here,
    jobs: JobNames,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation.")] = False,
) -> None:
    """Delete jobs, including running ones.

    On this machine the result is deleted with the run directory; in a cluster volumes are kept. On a
    terminal, a
    confirmation is requested first.
    """
    refs = [await here.ref(name) for name in jobs]
    records = [await here.site.get(ref) for ref in refs]
    if not yes and _on_a_terminal():
        names = ", ".join(f"{record.name} ({record.phase or 'new'})" for record in records)
        possessive = "its" if len(jobs) == 1 else "their"
        consequence = f"with {possessive} results" if here.site.kind == "local" else f"and all {possessive} pods"
        if not typer.confirm(f"Delete {names}, {consequence}?"):
            raise typer.Exit(ExitCode.FAILED)
    for ref in refs:
        await here.site.delete(ref)
        typer.echo(f"{ref.name}: deleted")


def _on_a_terminal() -> bool:
    return sys.stdin.isatty()
