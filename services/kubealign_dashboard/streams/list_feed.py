"""Changes of jobs in all namespaces."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from secrets import token_hex
from typing import Any

from kubealign.client.backends.base import JobBackend
from kubealign.client.records import JobRecord, JobRef, ListQuery
from kubealign_dashboard.access import ChangeSource
from kubealign_dashboard.api import serializers
from kubealign_dashboard.streams.feed import ChangeFeed
from kubealign_dashboard.web.json_response import encode

_JOURNAL_SIZE = 4096
_PAGE_SIZE = 500
_IDLE_FACTOR = 5
#: A changed job: namespace and JSON; a deleted job: namespace, None, and its reference.
ListChange = tuple[str, bytes | None, dict[str, Any]]


class ListFeed(ChangeFeed[ListChange]):
    """Subscribes to a reader that is a ChangeSource; lists all jobs of any other reader whenever something
    has changed.

    `journal_id` names this journal; its positions are meaningless in another.
    """

    def __init__(self, reader: JobBackend, pause: float) -> None:
        super().__init__(_JOURNAL_SIZE)
        self._reader = reader
        self._poll_seconds = pause
        self.journal_id = token_hex(4)
        #: Set once no change can be missed any more.
        self.ready = asyncio.Event()

    def close(self) -> None:
        super().close()
        self.ready.set()

    def _workers(self) -> Sequence[Callable[[], Awaitable[None]]]:
        return (self._listen,) if isinstance(self._reader, ChangeSource) else (self._poll,)

    async def _listen(self) -> None:
        assert isinstance(self._reader, ChangeSource)
        # The waiters run only after the reader has subscribed below.
        self.ready.set()
        try:
            async for changes in self._reader.changes():
                for change in changes:
                    self._append(change)
        finally:
            # Changes until the next subscription are lost to this journal.
            self.journal.close()

    async def _poll(self) -> None:
        version: str | None = None
        marks: dict[JobRef, object] | None = None
        while True:
            started = time.monotonic()
            newest = (await self._reader.list(ListQuery(limit=1))).resource_version
            if marks is None or not newest or newest != version:
                version, before = newest, marks
                marks = await self._scan(before)
                for ref in (before or {}).keys() - marks.keys():
                    self._append(ref)
                self.ready.set()
            # Listing very many jobs takes long: pause in proportion.
            await asyncio.sleep(max(self._poll_seconds, _IDLE_FACTOR * (time.monotonic() - started)))

    async def _scan(self, before: dict[JobRef, object] | None) -> dict[JobRef, object]:
        marks: dict[JobRef, object] = {}
        query = ListQuery(sort="name", limit=_PAGE_SIZE)
        while True:
            page = await self._reader.list(query)
            for job in page.jobs:
                marks[job.ref] = mark = (job.uid, job.metadata.get("resourceVersion"))
                if before is not None and before.get(job.ref) != mark:
                    self._append(job)
            if not page.next:
                return marks
            query = ListQuery(sort="name", limit=_PAGE_SIZE, after=page.next)

    def _append(self, change: JobRecord | JobRef) -> None:
        if isinstance(change, JobRecord):
            self.journal.append((change.namespace, encode(serializers.job_document(change)), {}))
        else:
            reference = {"namespace": change.namespace, "name": change.name}
            self.journal.append((change.namespace, None, reference))
