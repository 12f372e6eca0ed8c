"""`kubealign logs` and `kubealign events`."""

from typing import Annotated

import typer

from kubealign.cli.command import CommandContext, backend_command
from kubealign.cli.options import JobName, RowFormat
from kubealign.cli.output import format_json
from kubealign.cli.terminal import show

_COLORS = ("cyan", "green", "yellow", "magenta", "blue", "bright_red", "bright_cyan", "bright_green")


@backend_command
async def logs(
    ctx: CommandContext,
    job: JobName,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Continue with new lines until the job ends."),
    ] = False,
    role: Annotated[
        str | None,
        typer.Option(
            "--role", metavar="ROLE", help="Only this role, such as trainer or rollout.", show_default=False
        ),
    ] = None,
    process: Annotated[
        str | None,
        typer.Option(
            "--process", metavar="NAME", help="Only this process, such as rollout-1.", show_default=False
        ),
    ] = None,
    tail: Annotated[
        int | None,
        typer.Option(
            "--tail",
            metavar="LINES",
            min=0,
            help="Only this many last lines of each process.",
            show_default=False,
        ),
    ] = None,
    previous: Annotated[
        bool,
        typer.Option("--previous", "-p", help="The last failed attempt of each process, in a cluster."),
    ] = False,
) -> None:
    """Print a job's logs, each line preceded by the name of its process.

    With --follow, it may be started before the job's first process exists. On a terminal, events are
    formatted as text; otherwise lines are printed unchanged.
    """
    from rich.text import Text

    from kubealign.cli.views.log_line import format_log_line

    colors: dict[str, str] = {}
    if previous and follow:
        raise typer.BadParameter("--previous and --follow exclude each other", param_hint="--previous")
    ref = await ctx.ref(job)
    lines = ctx.backend.logs(ref, process=process, role=role, follow=follow, tail=tail, previous=previous)
    on_terminal = ctx.console.is_terminal
    async for line in lines:
        if not on_terminal:
            typer.echo(line.text if process else f"{line.process} {line.text}")
            continue
        color = colors.setdefault(line.process, _COLORS[len(colors) % len(_COLORS)])
        name = "" if process else f"{line.process} "
        ctx.console.print(Text.assemble((name, color), format_log_line(line.text)), soft_wrap=True)


@backend_command
async def events(
    ctx: CommandContext,
    job: JobName,
    output: Annotated[RowFormat, typer.Option("--output", "-o", help="Output format.")] = RowFormat.TABLE,
) -> None:
    """Show the events of a job, oldest first."""
    from kubealign.cli.views.event_table import event_table

    job_events = await ctx.backend.events(await ctx.ref(job))
    if output is RowFormat.JSON:
        typer.echo(
            format_json(
                [
                    {
                        "time": event.time.isoformat(),
                        "type": event.type,
                        "reason": event.reason,
                        "message": event.message,
                        "count": event.count,
                    }
                    for event in job_events
                ]
            )
        )
    elif job_events:
        show(ctx.console, event_table(job_events))
    else:
        typer.echo(f"No events of {job}.", err=True)
