"""`kubealign top`: live view of a running job."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated

import typer

from kubealign.cli.command import CommandContext, backend_command
from kubealign.cli.options import JobName
from kubealign.cli.terminal import show

if TYPE_CHECKING:
    from kubealign.cli.views.top_view import TopState
    from kubealign.client.records import JobRef


@backend_command
async def top(
    ctx: CommandContext,
    job: JobName,
    once: Annotated[bool, typer.Option("--once", help="Show the state once and exit.")] = False,
    every: Annotated[
        float, typer.Option("--every", metavar="SECONDS", min=0.2, max=3600, help="Update interval.")
    ] = 2.0,
) -> None:
    """Show a job's processes, throughput, queue and staleness, updated until the job ends.

    If stdout is not a terminal, print one line per step.
    """
    from kubealign.cli.views.top_view import TopState, render_top

    ref = await ctx.ref(job)
    state = TopState()
    await state.refresh(ctx.backend, ref)
    if once:
        show(ctx.console, render_top(state))
    elif ctx.console.is_terminal and not ctx.console.is_dumb_terminal:
        await _show_live(ctx, ref, state, every)
    else:
        await _print_lines(ctx, ref, state, every)


async def _show_live(ctx: CommandContext, ref: "JobRef", state: "TopState", every: float) -> None:
    from rich.live import Live

    from kubealign.cli.views.top_view import render_top

    with Live(render_top(state), console=ctx.console, auto_refresh=False) as live:
        async with _phase_changes(ctx, ref) as changed:
            while not state.is_finished:
                await _wait_for_change(changed, every)
                await state.refresh(ctx.backend, ref)
                live.update(render_top(state), refresh=True)


async def _print_lines(ctx: CommandContext, ref: "JobRef", state: "TopState", every: float) -> None:
    from kubealign.cli.views.top_view import format_line

    last_line = format_line(state)
    typer.echo(last_line)
    async with _phase_changes(ctx, ref) as changed:
        while not state.is_finished:
            await _wait_for_change(changed, every)
            await state.refresh(ctx.backend, ref)
            current_line = format_line(state)
            if current_line != last_line:
                typer.echo(current_line)
            last_line = current_line


@contextlib.asynccontextmanager
async def _phase_changes(ctx: CommandContext, ref: "JobRef") -> AsyncIterator[asyncio.Event]:
    """Yield an event that is set when the job's phase changes or the job is deleted.

    Metrics trigger no event and are polled.
    """
    changed = asyncio.Event()

    async def follow() -> None:
        phase = None
        async for record in ctx.backend.watch(ref):
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


async def _wait_for_change(changed: asyncio.Event, every: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(every):
            await changed.wait()
    changed.clear()
