"""All feeds of the service: one for each followed job, and one for lists."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kubealign.client.backends.base import JobBackend
from kubealign.client.records import JobRecord, JobRef
from kubealign_dashboard.streams.cursor import StreamCursor
from kubealign_dashboard.streams.job_feed import JobFeed, PollIntervals
from kubealign_dashboard.streams.list_feed import ListFeed
from kubealign_dashboard.web.problems import RequestRejected

_LIST_POLL_SECONDS = 2.0
#: Lifetime of the list feed after its last reader: a reader that reconnects finds its journal again.
_LIST_LINGER_SECONDS = 30.0


@dataclass(frozen=True)
class StreamLimits:
    """Maximum numbers of open streams: of all callers together, and of each caller."""

    total: int = 1000
    per_caller: int = 20


class Hub:
    """The feeds. `close` ends every stream; it is called once, at shutdown."""

    def __init__(
        self,
        reader: JobBackend,
        poll_intervals: PollIntervals | None = None,
        limits: StreamLimits | None = None,
    ) -> None:
        self._reader = reader
        self._pace = poll_intervals or PollIntervals()
        self._limits = limits or StreamLimits()
        self._jobs: dict[tuple[JobRef, str], JobFeed] = {}
        self._list: ListFeed | None = None
        self._closed = False
        self._streams: Counter[str] = Counter()

    @property
    def streams(self) -> int:
        """Number of open streams."""
        return self._streams.total()

    @property
    def followed_jobs(self) -> int:
        """Number of followed jobs."""
        return len(self._jobs)

    @contextmanager
    def reserve_stream(self, caller: str) -> Iterator[None]:
        """Reserve a stream for the caller with this name.

        Raises:
            RequestRejected: Too many streams are open, or the service shuts down.
        """
        if self._closed:
            raise RequestRejected(503, "ending", "the dashboard is shutting down: reconnect")
        if self._streams[caller] >= self._limits.per_caller:
            raise _too_many_streams(f"{caller} has {self._streams[caller]} open streams, the limit per user")
        if self.streams >= self._limits.total:
            raise _too_many_streams(f"{self.streams} streams are open, the limit of all users together")
        self._streams[caller] += 1
        try:
            yield
        finally:
            self._streams[caller] -= 1
            # The counter contains nobody without a stream.
            self._streams += Counter()

    @contextmanager
    def follow_job(self, record: JobRecord, cursor: StreamCursor) -> Iterator[JobFeed]:
        """Subscribe to the feed of a job; a new feed begins at the cursor."""
        key = record.ref, record.uid
        feed = self._jobs.get(key)
        if feed is None or feed.is_closed:
            feed = self._jobs[key] = JobFeed(self._reader, record, cursor, self._pace)
            if self._closed:
                feed.close()
        try:
            with feed.subscribe():
                yield feed
        finally:
            if feed.is_idle and self._jobs.get(key) is feed:
                del self._jobs[key]

    @contextmanager
    def follow_list(self) -> Iterator[ListFeed]:
        """Subscribe to the feed of all jobs."""
        feed = self._list
        if feed is None or feed.is_closed:
            feed = self._list = ListFeed(self._reader, _LIST_POLL_SECONDS)
            if self._closed:
                feed.close()
        with feed.subscribe(lingering=_LIST_LINGER_SECONDS):
            yield feed

    def close(self) -> None:
        self._closed = True
        for feed in self._jobs.values():
            feed.close()
        if self._list is not None:
            self._list.close()


def _too_many_streams(reason: str) -> RequestRejected:
    return RequestRejected(429, "too-many-streams", f"{reason}: close some pages")
