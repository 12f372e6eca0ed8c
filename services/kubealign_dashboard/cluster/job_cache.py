"""All jobs visible to the dashboard, in memory: looked up by name, and in sorted order.

Filled by reflectors; an object is only replaced by a newer resourceVersion.
"""

import asyncio
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager

from kubealign.client.records import JobRecord, JobRef
from kubealign.kube.resources import resource_version
from kubealign_dashboard.cluster.cached_job import (
    SORT_FIELDS,
    CachedJob,
    Json,
    SortKey,
    cached_job,
)

# A burst is delivered in batches, so that it does not starve other tasks.
_BATCH_SIZE = 100


class _ChangeQueue:
    """A queue of changed jobs for one listener: each job at most once, however slow the listener is."""

    def __init__(self) -> None:
        self._refs: dict[JobRef, None] = {}
        self._has_items = asyncio.Event()

    def add(self, ref: JobRef) -> None:
        self._refs[ref] = None
        self._has_items.set()

    async def take(self) -> list[JobRef]:
        """Wait for changes and return a batch of at least one."""
        await self._has_items.wait()
        taken = list(self._refs)[:_BATCH_SIZE]
        for ref in taken:
            del self._refs[ref]
        if not self._refs:
            self._has_items.clear()
        return taken


class _SortedIndex:
    """All jobs sorted by one field. The keys are kept in a parallel list for fast search."""

    def __init__(self, name: str) -> None:
        self.entries: list[CachedJob] = []
        self._name = name
        self._keys: list[SortKey] = []

    def replace(self, before: CachedJob | None, after: CachedJob | None) -> None:
        old = before.sort_key(self._name) if before else None
        new = after.sort_key(self._name) if after else None
        if old is not None:
            index = bisect_left(self._keys, old)
            if after is not None and old == new:
                self.entries[index] = after
                return
            del self._keys[index], self.entries[index]
        if after is not None and new is not None:
            index = bisect_left(self._keys, new)
            self._keys.insert(index, new)
            self.entries.insert(index, after)


class JobCache:
    """A cache for one event loop. `put`, `remove`, `sweep` and `advance_to` are called by the reflectors."""

    def __init__(self) -> None:
        self._jobs: dict[JobRef, CachedJob] = {}
        # Kept sorted: a change moves one job, and a page is a slice.
        self._indexes: dict[str, _SortedIndex] = {order: _SortedIndex(order) for order in SORT_FIELDS}
        self._namespaces: Counter[str] = Counter()
        self._reached: dict[str | None, int] = {}
        self._listeners: defaultdict[JobRef, set[asyncio.Event]] = defaultdict(set)
        self._feeds: set[_ChangeQueue] = set()

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def version(self) -> int:
        """The version up to which all changes are known."""
        return max(self._reached.values(), default=0)

    def get(self, ref: JobRef) -> CachedJob | None:
        return self._jobs.get(ref)

    def count(self, namespace: str) -> int:
        return self._namespaces[namespace]

    def namespaces(self) -> list[str]:
        """Return the namespaces that contain jobs, sorted."""
        return sorted(self._namespaces)

    def in_order(self, order: str) -> Sequence[CachedJob]:
        """Return all jobs in ascending order; do not modify; valid until the next change."""
        return self._indexes[order].entries

    def phases(self) -> Counter[str]:
        """Return the number of jobs in each phase."""
        return Counter(job.phase for job in self._jobs.values())

    async def watch(self, ref: JobRef) -> AsyncIterator[JobRecord]:
        """Yield the job, then its newest state after each change.

        Ends when it is deleted or replaced by a namesake.
        """
        last: CachedJob | None = None
        with self._listening(ref) as changed:
            while True:
                changed.clear()
                current = self._jobs.get(ref)
                if current is None or (last is not None and current.uid != last.uid):
                    return
                if current is not last:
                    last = current
                    yield current.record
                await changed.wait()

    async def changes(self) -> AsyncIterator[Sequence[JobRecord | JobRef]]:
        """Yield changes from now on, in batches: the newest state of a job, or the reference of a deleted
        one.
        """
        feed = _ChangeQueue()
        self._feeds.add(feed)
        try:
            while True:
                refs = await feed.take()
                states = [(ref, self._jobs.get(ref)) for ref in refs]
                yield [state.record if state is not None else ref for ref, state in states]
        finally:
            self._feeds.discard(feed)

    def put(self, item: Json) -> None:
        """Add or replace the job."""
        metadata = item["metadata"]
        ref = JobRef(metadata["namespace"], metadata["name"])
        before = self._jobs.get(ref)
        if before is None or resource_version(metadata) > before.version:
            self._replace(ref, before, cached_job(item))

    def record_write(self, item: Json) -> None:
        """Store the server's answer to a write, unless the watch has passed that version: the job may be
        deleted.
        """
        metadata = item["metadata"]
        delivered = max(self._reached.get(None, 0), self._reached.get(metadata["namespace"], 0))
        if resource_version(metadata) > delivered:
            self.put(item)

    def remove(self, item: Json) -> None:
        """Remove the job."""
        metadata = item["metadata"]
        ref = JobRef(metadata["namespace"], metadata["name"])
        job = self._jobs.get(ref)
        if job is not None and job.version <= resource_version(metadata):
            self._replace(ref, job, None)

    def sweep(self, namespace: str | None, uids: set[str], listed_version: int) -> None:
        """Remove the jobs that are older than a list and not in it.

        Args:
            uids: uids in the list.
            listed_version: resourceVersion of the list.
        """
        for ref, job in list(self._jobs.items()):
            if namespace in (None, ref.namespace) and job.version <= listed_version and job.uid not in uids:
                self._replace(ref, job, None)

    def advance_to(self, namespace: str | None, version: int) -> None:
        """Record that all events up to this version were delivered."""
        self._reached[namespace] = version

    def _replace(self, ref: JobRef, before: CachedJob | None, after: CachedJob | None) -> None:
        for order in self._indexes.values():
            order.replace(before, after)
        if after is not None:
            self._jobs[ref] = after
        else:
            del self._jobs[ref]
        self._count(ref.namespace, (after is not None) - (before is not None))
        for listener in self._listeners.get(ref, ()):
            listener.set()
        for feed in self._feeds:
            feed.add(ref)

    def _count(self, namespace: str, more: int) -> None:
        self._namespaces[namespace] += more
        if not self._namespaces[namespace]:
            del self._namespaces[namespace]

    @contextmanager
    def _listening(self, ref: JobRef) -> Iterator[asyncio.Event]:
        changed = asyncio.Event()
        self._listeners[ref].add(changed)
        try:
            yield changed
        finally:
            self._listeners[ref].discard(changed)
            if not self._listeners[ref]:
                del self._listeners[ref]
