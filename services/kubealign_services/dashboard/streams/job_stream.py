"""The stream of one reader of a job: everything it has not received, once and in order, then all changes."""

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
    """Yield the frames of a job's stream.

    Ends when the job is deleted, the service shuts down, or the reader is too slow; it then reconnects
    with its last id.

    Args:
        processes: Include the processes.
    """
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
        """Read past entries for this reader alone, as fast as it consumes them."""
        for kind in KINDS:
            async for items in pages(self._reader, self._record.ref, kind, self.cursor.at(kind)):
                self.cursor = self.cursor.moved(kind, items[-1]["entry"])
                yield self.frame(Event.with_items(kind, items))

    async def follow(self, feed: JobFeed) -> AsyncIterator[bytes]:
        # No await between these two: later events are in the journal.
        position, feed_cursor = feed.journal.position, feed.cursor
        if feed.record.resource != self._record.resource:
            yield self.frame(Event.of("job", told.resource(feed.record)))
        if self._processes and feed.processes is not None:
            yield self.frame(Event.with_items("roles", feed.processes))
        if any(order(feed_cursor.at(kind)) > order(self.cursor.at(kind)) for kind in KINDS):
            async for frame in self.missed():
                yield frame
        try:
            async for _, event in feed.journal.follow(position):
                unseen = self._unseen(event)
                if unseen is not None:
                    yield self.frame(unseen)
        except FellBehind:
            return

    def _unseen(self, event: Event) -> Event | None:
        """Return the part of the event that this reader has not received; advance the cursor."""
        if event.name == "roles" and not self._processes:
            return None
        if event.name not in KINDS:
            return event
        last_seen = order(self.cursor.at(event.name))
        new_items = [item for item in event.items if order(item["entry"]) > last_seen]
        if not new_items:
            return None
        self.cursor = self.cursor.moved(event.name, new_items[-1]["entry"])
        return event if len(new_items) == len(event.items) else Event.with_items(event.name, new_items)
