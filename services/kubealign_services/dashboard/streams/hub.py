"""All feeds of the service: one for each followed job, and one for lists."""

from collections.abc import Iterator
from contextlib import contextmanager

from kubealign.client.records import JobRecord, JobRef
from kubealign.client.site import Site
from kubealign_services.dashboard.problems import Refused
from kubealign_services.dashboard.streams.cursor import Cursor
from kubealign_services.dashboard.streams.job_feed import JobFeed, Pace
from kubealign_services.dashboard.streams.list_feed import ListFeed

_LIST_PAUSE = 2.0
#: Lifetime of the list feed after its last reader: a reader that reconnects finds its journal again.
_LIST_LINGERS = 30.0
MOST_STREAMS = 1000


class Hub:
    """The feeds. `close` ends every stream; it is called once, at shutdown."""

    def __init__(self, reader: Site, pace: Pace | None = None, most: int = MOST_STREAMS) -> None:
        self._reader = reader
        self._pace = pace or Pace()
        self._most = most
        self._jobs: dict[tuple[JobRef, str], JobFeed] = {}
        self._list: ListFeed | None = None
        self._closed = False
        #: Number of open streams.
        self.streams = 0

    @property
    def feeds(self) -> int:
        """Number of followed jobs."""
        return len(self._jobs)

    @contextmanager
    def place(self) -> Iterator[None]:
        """Reserve a stream.

        Raises:
            RequestRejected: Too many streams are open, or the service shuts down.
        """
        if self._closed:
            raise Refused(503, "ending", "the dashboard is shutting down: reconnect")
        if self.streams >= self._most:
            raise Refused(429, "too-many-streams", f"{self._most} streams are open: close some pages")
        self.streams += 1
        try:
            yield
        finally:
            self.streams -= 1

    @contextmanager
    def job(self, record: JobRecord, cursor: Cursor) -> Iterator[JobFeed]:
        """Subscribe to the feed of a job; a new feed begins at the cursor."""
        key = record.ref, record.uid
        feed = self._jobs.get(key)
        if feed is None or feed.over:
            feed = self._jobs[key] = JobFeed(self._reader, record, cursor, self._pace)
            if self._closed:
                feed.close()
        try:
            with feed.open():
                yield feed
        finally:
            if feed.idle and self._jobs.get(key) is feed:
                del self._jobs[key]

    @contextmanager
    def jobs(self) -> Iterator[ListFeed]:
        """Subscribe to the feed of all jobs."""
        feed = self._list
        if feed is None or feed.over:
            feed = self._list = ListFeed(self._reader, _LIST_PAUSE)
            if self._closed:
                feed.close()
        with feed.open(lingering=_LIST_LINGERS):
            yield feed

    def close(self) -> None:
        self._closed = True
        for feed in self._jobs.values():
            feed.close()
        if self._list is not None:
            self._list.close()
