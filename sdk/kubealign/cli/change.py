"""`kubealign scale`, `suspend`, `resume` and `delete`: what changes a job that is there."""

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
    """Have this many rollout workers, while the job runs."""
    await here.site.scale(await here.ref(job), replicas)
    workers = "1 rollout worker" if replicas == 1 else f"{replicas} rollout workers"
    typer.echo(f"{job}: {workers}")


@asks_site
async def suspend(here: Here, jobs: JobNames) -> None:
    """Save, stop, and give processes and accelerators back."""
    for name in jobs:
        await here.site.suspend(await here.ref(name), True)
        typer.echo(f"{name}: suspending; kubealign resume {name} goes on")


@asks_site
async def resume(here: Here, jobs: JobNames) -> None:
    """Go on from the last commit."""
    for name in jobs:
        await here.site.suspend(await here.ref(name), False)
        typer.echo(f"{name}: resuming")


@asks_site
async def delete(
    here: Here,
    jobs: JobNames,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete jobs, running ones too.

    On this machine the result goes with its folder; in a cluster volumes stay. On a terminal it asks first.
    """
    refs = [await here.ref(name) for name in jobs]
    records = [await here.site.get(ref) for ref in refs]
    if not yes and _on_a_terminal():
        told = ", ".join(f"{record.name} ({record.phase or 'new'})" for record in records)
        whose = "its" if len(jobs) == 1 else "their"
        lost = f"with {whose} results" if here.site.kind == "local" else f"and all {whose} pods"
        if not typer.confirm(f"Delete {told}, {lost}?"):
            raise typer.Exit(ExitCode.FAILED)
    for ref in refs:
        await here.site.delete(ref)
        typer.echo(f"{ref.name}: deleted")


def _on_a_terminal() -> bool:
    return sys.stdin.isatty()
