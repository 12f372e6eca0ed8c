"""`kubealign top`: a running job, live."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated

import typer

from kubealign.cli.command import Here, asks_site
from kubealign.cli.options import JobName
from kubealign.cli.terminal import show

if TYPE_CHECKING:
    from kubealign.cli.top_picture import Picture
    from kubealign.client.records import JobRef


@asks_site
async def top(
    here: Here,
    job: JobName,
    once: Annotated[bool, typer.Option("--once", help="One picture, and end.")] = False,
    every: Annotated[
        float, typer.Option("--every", metavar="SECONDS", min=0.2, max=3600, help="Between two looks.")
    ] = 2.0,
) -> None:
    """Show a job's processes, throughput, queue and staleness, live until it ends.

    Where stdout is no terminal: a line for each step.
    """
    from kubealign.cli.top_picture import Picture, picture

    ref = await here.ref(job)
    seen = Picture()
    await seen.look(here.site, ref)
    if once:
        show(here.console, picture(seen))
    elif here.console.is_terminal and not here.console.is_dumb_terminal:
        await _live(here, ref, seen, every)
    else:
        await _lines(here, ref, seen, every)


async def _live(here: Here, ref: "JobRef", seen: "Picture", every: float) -> None:
    from rich.live import Live

    from kubealign.cli.top_picture import picture

    with Live(picture(seen), console=here.console, auto_refresh=False) as live:
        async with _phase_changes(here, ref) as changed:
            while not seen.over:
                await _pause(changed, every)
                await seen.look(here.site, ref)
                live.update(picture(seen), refresh=True)


async def _lines(here: Here, ref: "JobRef", seen: "Picture", every: float) -> None:
    from kubealign.cli.top_picture import line

    said = line(seen)
    typer.echo(said)
    async with _phase_changes(here, ref) as changed:
        while not seen.over:
            await _pause(changed, every)
            await seen.look(here.site, ref)
            now = line(seen)
            if now != said:
                typer.echo(now)
            said = now


@contextlib.asynccontextmanager
async def _phase_changes(here: Here, ref: "JobRef") -> AsyncIterator[asyncio.Event]:
    """Set when the job has changed its phase, or is gone. Figures have no such sign: they are looked for."""
    changed = asyncio.Event()

    async def follow() -> None:
        phase = None
        async for record in here.site.watch(ref):
            if record.phase != phase:
                changed.set()
            phase = record.phase
        changed.set()

    task = asyncio.create_task(follow())
    try:
        yield changed
    finally:
        task.cancel()
        # How a watch ends matters to nobody: whoever looks next is told the same.
        await asyncio.wait([task])


async def _pause(changed: asyncio.Event, every: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(every):
            await changed.wait()
    changed.clear()
