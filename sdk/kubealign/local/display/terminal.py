"""Progress displays of a run: a live panel on a terminal, one line per step elsewhere."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.markup import escape

from kubealign.local.display.metric_lines import (
    format_metrics,
    format_seconds,
    format_step,
    format_validation,
)
from kubealign.local.display.panel import render_panel
from kubealign.local.display.progress_snapshot import ProgressSnapshot
from kubealign.local.processes.supervisor import ProcessView
from kubealign.local.run_dir.status import Phase, RunStatus
from kubealign.read_model import ReadModelClient
from kubealign.spec.job import AlignmentJob

_REFRESH_SECONDS = 0.5


def display_for(console: Console) -> "LinesDisplay":
    """Return the live panel where the console is an interactive terminal, else the line display."""
    return (
        PanelDisplay(console)
        if console.is_terminal and not console.is_dumb_terminal
        else LinesDisplay(console)
    )


class LinesDisplay:
    """Prints one line per step and one per event, unbuffered."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._snapshot = ProgressSnapshot("", None, 0.0)
        self._folder = Path()

    def begin(self, job: AlignmentJob, folder: Path) -> None:
        self._snapshot = ProgressSnapshot(job.name, job.spec.known_steps(), time.time())
        self._folder = folder
        self.show_message(f"started; logs: {folder / 'logs'}")

    def show_message(self, text: str) -> None:
        """Print a message about the job."""
        name = f"[bold]{escape(self._snapshot.job)}[/bold]: " if self._snapshot.job else ""
        # A closed output does not stop the job. On a broken pipe rich goes quiet and raises SystemExit.
        with contextlib.suppress(OSError, SystemExit):
            self._console.print(name + escape(text), soft_wrap=True, highlight=False)

    async def follow(
        self, reader: ReadModelClient, processes: Callable[[], list[ProcessView]], over: asyncio.Event
    ) -> None:
        """Show progress until `over` is set, then the final state, and return."""
        while True:
            last = over.is_set()
            for metrics in await self._snapshot.refresh(reader, processes):
                self.show_message(format_step(metrics, self._snapshot.max_steps))
            if last:
                return
            await _wait_for_refresh(over)

    def end(self, status: RunStatus) -> None:
        """Print the outcome of the run."""
        duration = format_seconds((status.ended_at or status.started_at) - status.started_at)
        if status.phase is Phase.SUCCEEDED:
            last = " ".join([*format_metrics(status.metrics), *format_validation(status.metrics)])
            self.show_message(
                f"succeeded after {duration}; result: {self._folder / 'result'}"
                + (f"; {last}" if last else "")
            )
        elif status.phase is Phase.STOPPED:
            self.show_message(status.message)
        else:
            self.show_message(f"failed after {duration}: {status.message}")


class PanelDisplay(LinesDisplay):
    """A panel redrawn twice a second, with messages above it."""

    async def follow(
        self, reader: ReadModelClient, processes: Callable[[], list[ProcessView]], over: asyncio.Event
    ) -> None:
        with Live(console=self._console, auto_refresh=False) as live:
            while True:
                last = over.is_set()
                await self._snapshot.refresh(reader, processes)
                live.update(render_panel(self._snapshot, time.time()), refresh=True)
                if last:
                    return
                await _wait_for_refresh(over)


async def _wait_for_refresh(over: asyncio.Event) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_REFRESH_SECONDS):
            await over.wait()
