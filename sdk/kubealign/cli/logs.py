"""`kubealign logs` and `kubealign events`."""

from typing import Annotated

import typer

from kubealign.cli.command import Here, asks_site
from kubealign.cli.options import JobName, RowFormat
from kubealign.cli.printing import as_json
from kubealign.cli.terminal import show

_COLORS = ("cyan", "green", "yellow", "magenta", "blue", "bright_red", "bright_cyan", "bright_green")


@asks_site
async def logs(
    here: Here,
    job: JobName,
    follow: Annotated[
        bool,
        typer.Option("--follow", "-f", help="Continue with new lines until the job ends."),
    ] = False,
    role: Annotated[
        str | None,
        typer.Option("--role", metavar="ROLE", help="Only this role, such as trainer or rollout.", show_default=False),
    ] = None,
    process: Annotated[
        str | None,
        typer.Option("--process", metavar="NAME", help="Only this process, such as rollout-1.", show_default=False),
    ] = None,
    tail: Annotated[
        int | None,
        typer.Option(
            "--tail", metavar="LINES", min=0, help="Only this many last lines of each process.", show_default=False
        ),
    ] = None,
) -> None:
    """Print a job's logs, each line preceded by the name of its process.

    With --follow, it may be started before the job's first process exists. On a terminal, events are
    formatted as text;
    otherwise lines are printed unchanged.
    """
    from rich.text import Text

    from kubealign.cli.log_line import told

    colors: dict[str, str] = {}
    lines = here.site.logs(await here.ref(job), process=process, role=role, follow=follow, tail=tail)
    on_terminal = here.console.is_terminal
    async for line in lines:
        if not on_terminal:
            typer.echo(line.text if process else f"{line.process} {line.text}")
            continue
        color = colors.setdefault(line.process, _COLORS[len(colors) % len(_COLORS)])
        name = "" if process else f"{line.process} "
        here.console.print(Text.assemble((name, color), told(line.text)), soft_wrap=True)


@asks_site
async def events(
    here: Here,
    job: JobName,
    output: Annotated[
        RowFormat, typer.Option("--output", "-o", help="Output format.")
    ] = RowFormat.TABLE,
) -> None:
    """Show the events of a job, oldest first."""
    from kubealign.cli.event_table import event_rows

    job_events = await here.site.events(await here.ref(job))
    if output is RowFormat.JSON:
        typer.echo(
            as_json(
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
        show(here.console, event_rows(job_events))
    else:
        typer.echo(f"No events of {job}.", err=True)
