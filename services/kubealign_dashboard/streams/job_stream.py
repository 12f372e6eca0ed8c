"""The stream of one reader of a job: everything it has not received, once and in order, then all changes."""

from collections.abc import AsyncIterator

from kubealign.client.backends.base import JobBackend
from kubealign.client.errors import MetricsUnreadable
from kubealign.client.records import JobRecord
from kubealign_dashboard.api import serializers
from kubealign_dashboard.streams.cursor import StreamCursor, stream_id_sort_key
from kubealign_dashboard.streams.hub import Hub
from kubealign_dashboard.streams.job_feed import KINDS, READABLE_AGAIN, JobFeed, iter_pages, unreadable_event
from kubealign_dashboard.streams.journal import ReaderFellBehind
from kubealign_dashboard.streams.server_sent_event import RETRY, ServerSentEvent


async def job_stream(
    hub: Hub, reader: JobBackend, record: JobRecord, cursor: StreamCursor, *, processes: bool
) -> AsyncIterator[bytes]:
    """Yield the frames of a job's stream.

    Ends when the job is deleted, the service shuts down, the reader is too slow, or entries can be read
    again that could not; it then reconnects with its last id.

    Args:
        processes: Include the processes.
    """
    stream = _JobStream(reader, record, cursor, processes)
    yield RETRY
    yield stream.frame(ServerSentEvent.encode("job", serializers.job_document(record)))
    async for frame in stream.catch_up():
        yield frame
    with hub.follow_job(record, stream.cursor) as feed:
        async for frame in stream.follow(feed):
            yield frame


class _JobStream:
    def __init__(self, reader: JobBackend, record: JobRecord, cursor: StreamCursor, processes: bool) -> None:
        self._reader = reader
        self._record = record
        self._processes = processes
        self.cursor = cursor

    def frame(self, event: ServerSentEvent) -> bytes:
        return event.frame(str(self.cursor))

    async def catch_up(self) -> AsyncIterator[bytes]:
        """Read past entries for this reader alone, as fast as it consumes them."""
        for kind in KINDS:
            try:
                async for items in iter_pages(self._reader, self._record.ref, kind, self.cursor.entry(kind)):
                    self.cursor = self.cursor.advanced(kind, items[-1]["entry"])
                    yield self.frame(ServerSentEvent.with_items(kind, items))
            except MetricsUnreadable as error:
                yield self.frame(unreadable_event(kind, str(error)))

    async def follow(self, feed: JobFeed) -> AsyncIterator[bytes]:
        # No await between these two: later events are in the journal.
        position, feed_cursor = feed.journal.position, feed.cursor
        if feed.record.resource != self._record.resource:
            yield self.frame(ServerSentEvent.encode("job", serializers.job_document(feed.record)))
        if self._processes and feed.processes is not None:
            yield self.frame(ServerSentEvent.with_items("roles", feed.processes))
        if any(
            stream_id_sort_key(feed_cursor.entry(kind)) > stream_id_sort_key(self.cursor.entry(kind))
            for kind in KINDS
        ):
            async for frame in self.catch_up():
                yield frame
        try:
            async for _, event in feed.journal.follow(position):
                unseen = self._filter_seen(event)
                if unseen is not None:
                    yield self.frame(unseen)
                if event in READABLE_AGAIN:
                    return
        except ReaderFellBehind:
            return

    def _filter_seen(self, event: ServerSentEvent) -> ServerSentEvent | None:
        """Return the part of the event that this reader has not received; advance the cursor."""
        if event.name == "roles" and not self._processes:
            return None
        if event.name not in KINDS:
            return event
        last_seen = stream_id_sort_key(self.cursor.entry(event.name))
        new_items = [item for item in event.items if stream_id_sort_key(item["entry"]) > last_seen]
        if not new_items:
            return None
        self.cursor = self.cursor.advanced(event.name, new_items[-1]["entry"])
        return (
            event if len(new_items) == len(event.items) else ServerSentEvent.with_items(event.name, new_items)
        )
