"""Changes of one job: its resource, metrics, samples and processes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kubealign.client.records import JobRecord, JobRef
from kubealign.client.site import Site
from kubealign_services.dashboard import told
from kubealign_services.dashboard.streams.cursor import Cursor
from kubealign_services.dashboard.streams.event import Event
from kubealign_services.dashboard.streams.feed import Feed

KINDS = ("metrics", "samples")
PAGE = {"metrics": 1000, "samples": 100}
_KEPT = 256


@dataclass(frozen=True)
class Pace:
    """Poll intervals in seconds: metrics, processes, and metrics of a finished job."""

    figures: float = 1.0
    processes: float = 2.0
    over: float = 10.0


class JobFeed(Feed[Event]):
    """The feed of one job. It begins at the cursor of its first reader."""

    def __init__(self, reader: Site, record: JobRecord, cursor: Cursor, pace: Pace) -> None:
        super().__init__(_KEPT)
        self._reader = reader
        self._pace = pace
        self.record = record
        #: Position of the journal's last events.
        self.cursor = cursor
        self.processes: list[dict[str, Any]] | None = None
        self._changed = asyncio.Event()

    @property
    def ref(self) -> JobRef:
        return self.record.ref

    def _work(self) -> Sequence[Callable[[], Awaitable[None]]]:
        return (self._watch, self._look_at_figures, self._look_at_processes)

    async def _watch(self) -> None:
        async for record in self._reader.watch(self.ref):
            if record.resource != self.record.resource:
                self.record = record
                self.journal.append(Event.of("job", told.resource(record)))
                self._changed.set()
        self._gone()

    def _gone(self) -> None:
        # Several tasks may detect the deletion; the first one reports it.
        if not self.over:
            self.journal.append(Event.of("gone", {}))
        super()._gone()

    async def _look_at_figures(self) -> None:
        while True:
            self._changed.clear()
            is_finished = self.record.phase is not None and self.record.phase.final
            for kind in KINDS:
                async for items in pages(self._reader, self.ref, kind, self.cursor.at(kind)):
                    self.cursor = self.cursor.moved(kind, items[-1]["entry"])
                    self.journal.append(Event.with_items(kind, items))
            if is_finished:
                await self._change(self._pace.over)
            else:
                await asyncio.sleep(self._pace.figures)

    async def _look_at_processes(self) -> None:
        while True:
            processes = told.processes(await self._reader.processes(self.ref))
            if self.processes is None or _lasting(processes) != _lasting(self.processes):
                self.processes = processes
                self.journal.append(Event.with_items("roles", processes))
            await asyncio.sleep(self._pace.processes)

    async def _change(self, seconds: float) -> None:
        """Wait for a change of the job, at most this many seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return


async def pages(reader: Site, ref: JobRef, kind: str, after: str) -> AsyncIterator[list[dict[str, Any]]]:
    """Yield pages of entries after this one, up to now."""
    while True:
        items = await _page(reader, ref, kind, after)
        if items:
            yield items
            after = items[-1]["entry"]
        if len(items) < PAGE[kind]:
            return


async def _page(reader: Site, ref: JobRef, kind: str, after: str) -> list[dict[str, Any]]:
    if kind == "metrics":
        return [told.step(step) for step in await reader.metrics(ref, after, PAGE[kind])]
    return [told.sample(record, tokens=False) for record in await reader.samples(ref, after, PAGE[kind])]


def _lasting(processes: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the processes without the field that changes constantly."""
    return [{**process, "silentSeconds": None} for process in processes]
