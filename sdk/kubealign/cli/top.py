"""`kubealign top`: live view of a running job."""

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
    once: Annotated[bool, typer.Option("--once", help="Show the state once and exit.")] = False,
    every: Annotated[
        float, typer.Option("--every", metavar="SECONDS", min=0.2, max=3600, help="Update interval.")
    ] = 2.0,
) -> None:
    """Show a job's processes, throughput, queue and staleness, updated until the job ends.

    If stdout is not a terminal, print one line per step.
    """
    from kubealign.cli.top_picture import Picture, picture

    ref = await here.ref(job)
    state = Picture()
    await state.look(here.site, ref)
    if once:
        show(here.console, picture(state))
    elif here.console.is_terminal and not here.console.is_dumb_terminal:
        await _live(here, ref, state, every)
    else:
        await _lines(here, ref, state, every)


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

    last_line = line(seen)
    typer.echo(last_line)
    async with _phase_changes(here, ref) as changed:
        while not seen.over:
            await _pause(changed, every)
            await seen.look(here.site, ref)
            current_line = line(seen)
            if current_line != last_line:
                typer.echo(current_line)
            last_line = current_line


@contextlib.asynccontextmanager
async def _phase_changes(here: Here, ref: "JobRef") -> AsyncIterator[asyncio.Event]:
    """Yield an event that is set when the job's phase changes or the job is deleted.

    Metrics trigger no event and are polled.
    """
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
        # The outcome of the watch is ignored: the next refresh raises the same error.
        await asyncio.wait([task])


async def _pause(changed: asyncio.Event, every: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(every):
            await changed.wait()
    changed.clear()
