"""In-memory bus with the behaviour of JetStream, for tests and single-process runs."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

from kubealign_services.messaging.contract import (
    BusUnavailable,
    Delivery,
    DiscardedMessages,
    PayloadTooLarge,
)
from kubealign_services.messaging.lost_streams import StreamLossTracker
from kubealign_services.messaging.retention_limits import Bounds, bounds_for


@dataclass(frozen=True)
class _Message:
    data: bytes
    headers: Mapping[str, str]
    # Loop time of its publication.
    stored_at: float


@dataclass
class _Pending:
    """A message that a consumer has not settled."""

    message: _Message
    # Loop time from which it may be delivered.
    due: float = 0.0
    attempts: int = 0


@dataclass
class _MemoryStream:
    bounds: Bounds
    # By sequence number, oldest first.
    messages: dict[int, _Message] = field(default_factory=dict)
    last: int = 0
    size_bytes: int = 0
    # Message id -> loop time of its publication.
    seen: dict[str, float] = field(default_factory=dict)
    consumers: dict[str, dict[int, _Pending]] = field(default_factory=dict)
    # Messages that made room for newer ones since the last purge.
    discarded: int = 0
    # Consumer -> those that it had not received.
    undelivered: Counter[str] = field(default_factory=Counter)


class MemoryBus:
    """Bus of one job, in memory.

    Args:
        max_payload: Bytes.
        ack_wait: Seconds.
        dedup_window: Seconds.
        bounds: Bounds of every subject; the default suits a small job.
    """

    def __init__(
        self,
        max_payload: int = 8 << 20,
        ack_wait: float = 30.0,
        dedup_window: float = 600.0,
        bounds: Mapping[str, Bounds] | None = None,
    ) -> None:
        self.max_payload = max_payload
        self.ack_wait = ack_wait
        self._dedup_window = dedup_window
        every = bounds_for(1, 1, 1, 1) if bounds is None else bounds
        self._streams = {subject: _MemoryStream(limit) for subject, limit in every.items()}
        self._change = asyncio.Condition()
        self._lost_streams = StreamLossTracker()
        self._closed = False

    def new_connection(self, ack_wait: float | None = None) -> "MemoryBus":
        """Return a second connection to the same bus, which is closed separately."""
        bus = MemoryBus(self.max_payload, self.ack_wait if ack_wait is None else ack_wait, self._dedup_window)
        bus._streams = self._streams
        bus._change = self._change
        bus._lost_streams = self._lost_streams
        return bus

    async def simulate_data_loss(self) -> None:
        """Drop all messages, as a server that restarts with an empty store does."""
        for subject, stream in self._streams.items():
            await self.purge(subject)
            stream.seen.clear()
            await self._lost_streams.record_loss(subject)

    async def publish(
        self, subject: str, data: bytes, message_id: str, headers: Mapping[str, str] | None = None
    ) -> None:
        if len(data) > self.max_payload:
            raise PayloadTooLarge(payload_too_large_text(subject, len(data), self.max_payload))
        stream = self._stream(subject)
        now = asyncio.get_running_loop().time()
        # Oldest first.
        while stream.seen and next(iter(stream.seen.values())) <= now - self._dedup_window:
            del stream.seen[next(iter(stream.seen))]
        if message_id in stream.seen:
            return
        stream.seen[message_id] = now
        stream.last += 1
        message = stream.messages[stream.last] = _Message(data, dict(headers or {}), now)
        stream.size_bytes += len(data)
        for pending in stream.consumers.values():
            pending[stream.last] = _Pending(message)
        while len(stream.messages) > stream.bounds.messages or stream.size_bytes > stream.bounds.size_bytes:
            self._discard(stream, next(iter(stream.messages)))
        await self._notify()
        # Let other tasks run, as a round trip to a server would.
        await asyncio.sleep(0)

    async def pull(self, subject: str, consumer: str, count: int, timeout: float) -> list[Delivery]:
        stream = self._stream(subject)
        pending = stream.consumers.get(consumer)
        if pending is None:
            pending = {sequence: _Pending(message) for sequence, message in stream.messages.items()}
            stream.consumers[consumer] = pending
            stream.undelivered[consumer] += stream.discarded
            await self._notify()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        async with self._change:
            while not self._closed:
                now = loop.time()
                deliveries: list[Delivery] = []
                for sequence, unsettled in sorted(pending.items()):
                    if unsettled.due <= now and len(deliveries) < count:
                        unsettled.due = now + self.ack_wait
                        unsettled.attempts += 1
                        deliveries.append(_MemoryDelivery(self, pending, sequence, unsettled))
                if deliveries:
                    return deliveries
                if now >= deadline:
                    return []
                wake = min([deadline, *(unsettled.due for unsettled in pending.values())])
                try:
                    # Not wait_for, which before Python 3.12 may swallow a cancellation.
                    async with asyncio.timeout(max(0.0, wake - now)):
                        await self._change.wait()
                except TimeoutError:
                    continue
        return []

    async def latest(self, subject: str) -> AsyncIterator[bytes]:
        stream = self._stream(subject)
        seen = 0
        while not self._closed:
            if stream.last > seen and stream.messages:
                seen = stream.last
                yield stream.messages[seen].data
                continue
            async with self._change:
                while not self._closed and not (stream.last > seen and stream.messages):
                    await self._change.wait()

    def count_rejected(self, subject: str) -> None:
        """Do nothing: InstrumentedBus counts."""

    def watch_data_loss(self, subject: str) -> AsyncIterator[None]:
        self._stream(subject)
        return self._lost_streams.follow(subject)

    async def watch_discards(self, subject: str) -> AsyncIterator[DiscardedMessages]:
        stream = self._stream(subject)
        reported = stream.undelivered.copy()
        while not self._closed:
            for consumer, count in (stream.undelivered - reported).items():
                reported[consumer] += count
                yield DiscardedMessages(subject, consumer, count, stream.bounds)
            async with self._change:
                while not self._closed and not stream.undelivered - reported:
                    await self._change.wait()

    async def purge(self, subject: str) -> None:
        stream = self._stream(subject)
        stream.discarded = 0
        for sequence in list(stream.messages):
            self._remove(stream, sequence)
        await self._notify()

    async def close(self) -> None:
        self._closed = True
        await self._notify()

    def _stream(self, subject: str) -> _MemoryStream:
        if self._closed:
            raise BusUnavailable("the bus is closed")
        if subject not in self._streams:
            raise ValueError(unknown_subject_text(subject, self._streams))
        return self._streams[subject]

    def _discard(self, stream: _MemoryStream, sequence: int) -> None:
        """Remove a message to make room for a newer one."""
        stream.discarded += 1
        for consumer, pending in stream.consumers.items():
            if sequence in pending and not pending[sequence].attempts:
                stream.undelivered[consumer] += 1
        self._remove(stream, sequence)

    def _remove(self, stream: _MemoryStream, sequence: int) -> None:
        stream.size_bytes -= len(stream.messages.pop(sequence).data)
        for pending in stream.consumers.values():
            pending.pop(sequence, None)

    async def _notify(self) -> None:
        async with self._change:
            self._change.notify_all()


class _MemoryDelivery:
    def __init__(
        self, bus: MemoryBus, pending: dict[int, _Pending], sequence: int, unsettled: _Pending
    ) -> None:
        self.data = unsettled.message.data
        self.headers = unsettled.message.headers
        self.attempt = unsettled.attempts
        self.age = asyncio.get_running_loop().time() - unsettled.message.stored_at
        self._bus = bus
        self._pending = pending
        self._sequence = sequence
        self._unsettled = unsettled
        self._settled = False

    async def ack(self) -> None:
        await self._settle()

    async def reject(self) -> None:
        await self._settle()

    async def in_progress(self) -> None:
        if not self._settled:
            self._unsettled.due = asyncio.get_running_loop().time() + self._bus.ack_wait

    async def retry(self, delay: float = 0.0) -> None:
        if not self._settled:
            self._settled = True
            self._unsettled.due = asyncio.get_running_loop().time() + delay
            await self._bus._notify()

    async def _settle(self) -> None:
        if not self._settled:
            self._settled = True
            self._pending.pop(self._sequence, None)


def payload_too_large_text(subject: str, size: int, limit: int) -> str:
    """Return the text of PayloadTooLarge."""
    return f"a message on {subject} has {size} bytes: the bus accepts at most {limit}"


def unknown_subject_text(subject: str, subjects: Mapping[str, object]) -> str:
    """Return the error text for a subject that the bus does not have."""
    return f"the bus has no subject {subject!r}; there are {', '.join(sorted(subjects))}"
