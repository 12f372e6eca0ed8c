"""All jobs that the dashboard may see, in memory: looked up by name, and in order.

Told by reflectors what the API server says; nothing older ever replaces what is there.
"""

import asyncio
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager

from kubealign.client.records import JobRecord, JobRef
from kubealign_services.dashboard.cluster.entry import ORDERS, Entry, Json, Place, entry, version

# A burst is told in parts, so that nobody waits long for a turn.
_AT_ONCE = 100


class _Feed:
    """Jobs that have changed since somebody last looked: each once, however slow they are."""

    def __init__(self) -> None:
        self._refs: dict[JobRef, None] = {}
        self._some = asyncio.Event()

    def add(self, ref: JobRef) -> None:
        self._refs[ref] = None
        self._some.set()

    async def taken(self) -> list[JobRef]:
        """At least one."""
        await self._some.wait()
        taken = list(self._refs)[:_AT_ONCE]
        for ref in taken:
            del self._refs[ref]
        if not self._refs:
            self._some.clear()
        return taken


class _Order:
    """All jobs by their places, which lie beside them: so they are found and compared quickly."""

    def __init__(self, name: str) -> None:
        self.entries: list[Entry] = []
        self._name = name
        self._places: list[Place] = []

    def replace(self, before: Entry | None, after: Entry | None) -> None:
        old = before.place(self._name) if before else None
        new = after.place(self._name) if after else None
        if old is not None:
            index = bisect_left(self._places, old)
            if after is not None and old == new:
                self.entries[index] = after
                return
            del self._places[index], self.entries[index]
        if after is not None and new is not None:
            index = bisect_left(self._places, new)
            self._places.insert(index, new)
            self.entries.insert(index, after)


class JobCache:
    """For one event loop. `put`, `remove`, `sweep` and `reach` are a reflector's."""

    def __init__(self) -> None:
        self._held: dict[JobRef, Entry] = {}
        # Sorted all the time: a change moves one job, and a page is a slice.
        self._orders: dict[str, _Order] = {order: _Order(order) for order in ORDERS}
        self._namespaces: Counter[str] = Counter()
        self._reached: dict[str | None, int] = {}
        self._listeners: defaultdict[JobRef, set[asyncio.Event]] = defaultdict(set)
        self._feeds: set[_Feed] = set()

    def __len__(self) -> int:
        return len(self._held)

    @property
    def reached(self) -> int:
        """The version up to which everything is known."""
        return max(self._reached.values(), default=0)

    def get(self, ref: JobRef) -> Entry | None:
        return self._held.get(ref)

    def count(self, namespace: str) -> int:
        return self._namespaces[namespace]

    def namespaces(self) -> list[str]:
        """Those with jobs, by name."""
        return sorted(self._namespaces)

    def ordered(self, order: str) -> Sequence[Entry]:
        """All jobs, the least first; not to be changed, and good until the next change."""
        return self._orders[order].entries

    def phases(self) -> Counter[str]:
        """How many jobs are in each."""
        return Counter(held.phase for held in self._held.values())

    async def watch(self, ref: JobRef) -> AsyncIterator[JobRecord]:
        """The job as it is, then the newest state after each change or several. Ends when it is gone, also
        when another of its name has come."""
        seen: Entry | None = None
        with self._listening(ref) as changed:
            while True:
                changed.clear()
                held = self._held.get(ref)
                if held is None or (seen is not None and held.uid != seen.uid):
                    return
                if held is not seen:
                    seen = held
                    yield held.record
                await changed.wait()

    async def changes(self) -> AsyncIterator[Sequence[JobRecord | JobRef]]:
        """What changes from now on, some at a time: the newest state of a job, or the place of one that is
        gone."""
        feed = _Feed()
        self._feeds.add(feed)
        try:
            while True:
                refs = await feed.taken()
                held = [(ref, self._held.get(ref)) for ref in refs]
                yield [now.record if now is not None else ref for ref, now in held]
        finally:
            self._feeds.discard(feed)

    def put(self, item: Json) -> None:
        """It is there, as this says."""
        metadata = item["metadata"]
        ref = JobRef(metadata["namespace"], metadata["name"])
        before = self._held.get(ref)
        if before is None or version(metadata) > before.version:
            self._replace(ref, before, entry(item))

    def answered(self, item: Json) -> None:
        """What the server answered to a change: as `put`, unless the watch has been past that moment, and
        may have told that the job is gone."""
        metadata = item["metadata"]
        told = max(self._reached.get(None, 0), self._reached.get(metadata["namespace"], 0))
        if version(metadata) > told:
            self.put(item)

    def remove(self, item: Json) -> None:
        """It is gone."""
        metadata = item["metadata"]
        ref = JobRef(metadata["namespace"], metadata["name"])
        held = self._held.get(ref)
        if held is not None and held.version <= version(metadata):
            self._replace(ref, held, None)

    def sweep(self, namespace: str | None, kept: set[str], reached: int) -> None:
        """A list at version `reached` had these uids: what is older and not among them is gone."""
        for ref, held in list(self._held.items()):
            if namespace in (None, ref.namespace) and held.version <= reached and held.uid not in kept:
                self._replace(ref, held, None)

    def reach(self, namespace: str | None, reached: int) -> None:
        """Everything up to this version has been told."""
        self._reached[namespace] = reached

    def _replace(self, ref: JobRef, before: Entry | None, after: Entry | None) -> None:
        for order in self._orders.values():
            order.replace(before, after)
        if after is not None:
            self._held[ref] = after
        else:
            del self._held[ref]
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
