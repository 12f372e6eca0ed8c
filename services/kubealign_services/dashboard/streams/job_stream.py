"""What one reader gets of a job: all that it has not seen, once, in order, and what changes from then on."""

from collections.abc import AsyncIterator

from kubealign.client.records import JobRecord
from kubealign.client.site import Site
from kubealign_services.dashboard import told
from kubealign_services.dashboard.streams.cursor import Cursor, order
from kubealign_services.dashboard.streams.event import RETRY, Event
from kubealign_services.dashboard.streams.hub import Hub
from kubealign_services.dashboard.streams.job_feed import KINDS, JobFeed, pages
from kubealign_services.dashboard.streams.journal import FellBehind


async def job_stream(
    hub: Hub, reader: Site, record: JobRecord, cursor: Cursor, *, processes: bool
) -> AsyncIterator[bytes]:
    """Frames. `processes`: tell those too. Ends when the job is gone, the service ends, or the reader is too
    slow: then it comes again with the last id that it saw."""
    stream = _JobStream(reader, record, cursor, processes)
    yield RETRY
    yield stream.frame(Event.of("job", told.resource(record)))
    async for frame in stream.missed():
        yield frame
    with hub.job(record, stream.cursor) as feed:
        async for frame in stream.follow(feed):
            yield frame


class _JobStream:
    def __init__(self, reader: Site, record: JobRecord, cursor: Cursor, processes: bool) -> None:
        self._reader = reader
        self._record = record
        self._processes = processes
        self.cursor = cursor

    def frame(self, event: Event) -> bytes:
        return event.frame(str(self.cursor))

    async def missed(self) -> AsyncIterator[bytes]:
        """Read for this reader alone, as fast as it takes it."""
        for kind in KINDS:
            async for items in pages(self._reader, self._record.ref, kind, self.cursor.at(kind)):
                self.cursor = self.cursor.moved(kind, items[-1]["entry"])
                yield self.frame(Event.with_items(kind, items))

    async def follow(self, feed: JobFeed) -> AsyncIterator[bytes]:
        # Nothing is awaited between these: what comes later is in the journal.
        position, reached = feed.journal.position, feed.cursor
        if feed.record.resource != self._record.resource:
            yield self.frame(Event.of("job", told.resource(feed.record)))
        if self._processes and feed.processes is not None:
            yield self.frame(Event.with_items("roles", feed.processes))
        if any(order(reached.at(kind)) > order(self.cursor.at(kind)) for kind in KINDS):
            async for frame in self.missed():
                yield frame
        try:
            async for _, event in feed.journal.follow(position):
                shown = self._unseen(event)
                if shown is not None:
                    yield self.frame(shown)
        except FellBehind:
            return

    def _unseen(self, event: Event) -> Event | None:
        """What of it this reader has not had; moves the cursor behind it."""
        if event.name == "roles" and not self._processes:
            return None
        if event.name not in KINDS:
            return event
        seen = order(self.cursor.at(event.name))
        news = [item for item in event.items if order(item["entry"]) > seen]
        if not news:
            return None
        self.cursor = self.cursor.moved(event.name, news[-1]["entry"])
        return event if len(news) == len(event.items) else Event.with_items(event.name, news)
