"""Changes of one job: its resource, metrics, samples and processes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kubealign.client.backends.base import JobBackend
from kubealign.client.errors import MetricsUnreadable
from kubealign.client.records import JobRecord, JobRef
from kubealign_dashboard.api import serializers
from kubealign_dashboard.streams.cursor import StreamCursor
from kubealign_dashboard.streams.feed import ChangeFeed
from kubealign_dashboard.streams.server_sent_event import ServerSentEvent

KINDS = ("metrics", "samples")
PAGE_SIZES = {"metrics": 1000, "samples": 100}
_JOURNAL_SIZE = 256


@dataclass(frozen=True)
class PollIntervals:
    """Poll intervals in seconds: metrics, processes, and metrics of a finished job."""

    metrics: float = 1.0
    processes: float = 2.0
    finished: float = 10.0


class JobFeed(ChangeFeed[ServerSentEvent]):
    """The feed of one job. It begins at the cursor of its first reader."""

    def __init__(
        self, reader: JobBackend, record: JobRecord, cursor: StreamCursor, poll_intervals: PollIntervals
    ) -> None:
        super().__init__(_JOURNAL_SIZE)
        self._reader = reader
        self._poll_intervals = poll_intervals
        self.record = record
        #: Position of the journal's last events.
        self.cursor = cursor
        self.processes: list[dict[str, Any]] | None = None
        #: Kind of entries that cannot be read -> the reason.
        self.unreadable: dict[str, str] = {}
        self._changed = asyncio.Event()

    @property
    def ref(self) -> JobRef:
        return self.record.ref

    def _workers(self) -> Sequence[Callable[[], Awaitable[None]]]:
        return (self._watch, self._poll_metrics, self._poll_processes)

    async def _watch(self) -> None:
        async for record in self._reader.watch(self.ref):
            if record.resource != self.record.resource:
                self.record = record
                self.journal.append(ServerSentEvent.encode("job", serializers.job_document(record)))
                self._changed.set()
        self._on_gone()

    def _on_gone(self) -> None:
        # Several tasks may detect the deletion; the first one reports it.
        if not self.is_closed:
            self.journal.append(ServerSentEvent.encode("gone", {}))
        super()._on_gone()

    async def _poll_metrics(self) -> None:
        while True:
            self._changed.clear()
            is_finished = self.record.phase is not None and self.record.phase.is_final
            for kind in KINDS:
                reason = ""
                try:
                    async for items in iter_pages(self._reader, self.ref, kind, self.cursor.entry(kind)):
                        # Before the entries: streams end with it, and read what they lack.
                        self._set_unreadable(kind, "")
                        self.cursor = self.cursor.advanced(kind, items[-1]["entry"])
                        self.journal.append(ServerSentEvent.with_items(kind, items))
                except MetricsUnreadable as error:
                    # One kind does not stop the other, nor the changes of the job.
                    reason = str(error)
                self._set_unreadable(kind, reason)
            if is_finished or self.unreadable:
                await self._wait_for_change(self._poll_intervals.finished)
            else:
                await asyncio.sleep(self._poll_intervals.metrics)

    def _set_unreadable(self, kind: str, reason: str) -> None:
        """Report that entries of this kind cannot be read, or, with an empty reason, that they can again."""
        if reason != self.unreadable.get(kind, ""):
            self.unreadable[kind] = reason
            self.journal.append(unreadable_event(kind, reason))
        if not reason:
            self.unreadable.pop(kind, None)

    async def _poll_processes(self) -> None:
        while True:
            processes = serializers.process_items(await self._reader.processes(self.ref))
            if self.processes is None or _without_silence(processes) != _without_silence(self.processes):
                self.processes = processes
                self.journal.append(ServerSentEvent.with_items("roles", processes))
            await asyncio.sleep(self._poll_intervals.processes)

    async def _wait_for_change(self, seconds: float) -> None:
        """Wait for a change of the job, at most this many seconds."""
        try:
            async with asyncio.timeout(seconds):
                await self._changed.wait()
        except TimeoutError:
            return


def unreadable_event(kind: str, reason: str) -> ServerSentEvent:
    return ServerSentEvent.encode("unreadable", {"kind": kind, "reason": reason})


#: The events after which a stream ends: its reader may lack entries, and resumes with its last id.
READABLE_AGAIN = tuple(unreadable_event(kind, "") for kind in KINDS)


async def iter_pages(
    reader: JobBackend, ref: JobRef, kind: str, after: str
) -> AsyncIterator[list[dict[str, Any]]]:
    """Yield pages of entries after this one, up to now."""
    while True:
        items = await _page(reader, ref, kind, after)
        # A page of large entries is shorter than its limit: only an empty page is the last one.
        if not items:
            return
        yield items
        after = items[-1]["entry"]


async def _page(reader: JobBackend, ref: JobRef, kind: str, after: str) -> list[dict[str, Any]]:
    if kind == "metrics":
        return [serializers.step_metrics(step) for step in await reader.metrics(ref, after, PAGE_SIZES[kind])]
    return [
        serializers.sample(record, tokens=False)
        for record in await reader.samples(ref, after, PAGE_SIZES[kind])
    ]


def _without_silence(processes: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the processes without the field that changes constantly."""
    return [{**process, "silentSeconds": None} for process in processes]
