"""`kubealign scale`, `suspend`, `resume`, `retry` and `delete`: change existing jobs."""

import sys
from typing import Annotated

import typer

from kubealign.cli.command import CommandContext, backend_command
from kubealign.cli.exit_codes import CliExitCode
from kubealign.cli.options import JobName, JobNames
from kubealign.client.backends.worker_groups import ROLLOUT


@backend_command
async def scale(
    ctx: CommandContext,
    job: JobName,
    replicas: Annotated[int, typer.Argument(metavar="REPLICAS", min=0, show_default=False)],
    group: Annotated[
        str,
        typer.Option(
            metavar="GROUP",
            help="Workers to scale: rollout, environment, reward-NAME, reference, teacher or teacher-NAME.",
        ),
    ] = ROLLOUT,
) -> None:
    """Set the number of rollout workers, or of other workers, of a running job."""
    from kubealign.client.backends.replicas import describe_workers

    await ctx.backend.scale(await ctx.ref(job), replicas, group)
    typer.echo(f"{job}: {describe_workers(group, replicas)}")


@backend_command
async def suspend(ctx: CommandContext, jobs: JobNames) -> None:
    """Save a checkpoint, stop, and release processes and accelerators."""
    for name in jobs:
        await ctx.backend.suspend(await ctx.ref(name), True)
        typer.echo(f"{name}: suspending; resume with: kubealign resume {name}")


@backend_command
async def resume(ctx: CommandContext, jobs: JobNames) -> None:
    """Resume from the last checkpoint."""
    for name in jobs:
        await ctx.backend.suspend(await ctx.ref(name), False)
        typer.echo(f"{name}: resuming")


@backend_command
async def retry(ctx: CommandContext, jobs: JobNames) -> None:
    """Start failed jobs again from their last checkpoints.

    Repair the cause of the failure first. The restarts are counted anew; the deadline counts over all
    attempts.
    """
    for name in jobs:
        await ctx.backend.retry(await ctx.ref(name))
        typer.echo(f"{name}: retrying")


@backend_command
async def delete(
    ctx: CommandContext,
    jobs: JobNames,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation.")] = False,
) -> None:
    """Delete jobs, including running ones.

    On this machine the result is deleted with the run directory; in a cluster volumes are kept. On a
    terminal, a confirmation is requested first.
    """
    refs = [await ctx.ref(name) for name in jobs]
    records = [await ctx.backend.get(ref) for ref in refs]
    if not yes and _is_stdin_terminal():
        names = ", ".join(f"{record.name} ({record.phase or 'new'})" for record in records)
        possessive = "its" if len(jobs) == 1 else "their"
        consequence = (
            f"with {possessive} results" if ctx.backend.kind == "local" else f"and all {possessive} pods"
        )
        if not typer.confirm(f"Delete {names}, {consequence}?"):
            raise typer.Exit(CliExitCode.FAILED)
    for ref in refs:
        await ctx.backend.delete(ref)
        typer.echo(f"{ref.name}: deleted")


def _is_stdin_terminal() -> bool:
    return sys.stdin.isatty()
