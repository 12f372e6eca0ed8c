"""Counts the messages that a stream discarded before a consumer had received them.

The server reports no such loss: a consumer skips what its stream no longer has. The positions of the
consumers show it. A consumer whose next message is older than the first of the stream has lost the messages
between. A consumer that has moved further through the stream than it had deliveries has skipped the
difference. A redelivery counts as a delivery, so the difference may be too small and is never too large.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

import nats.errors
from nats.js import JetStreamContext

from kubealign_services.messaging.cancellation import ReraiseCancellation
from kubealign_services.messaging.contract import DiscardedMessages
from kubealign_services.messaging.jetstream.connection import NatsConnection
from kubealign_services.messaging.jetstream.streams import StreamRegistry
from kubealign_services.messaging.retention_limits import Bounds

_POLL_SECONDS = 2.0
_ANSWER_SECONDS = 2.0
_CONSUMERS_PER_PAGE = 256

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ConsumerPosition:
    """Progress of a consumer.

    Attributes:
        stream_sequence: Number of the newest message that was delivered or skipped.
        deliveries: Number of deliveries so far, redeliveries included.
    """

    stream_sequence: int = 0
    deliveries: int = 0


@dataclass(frozen=True)
class StreamSample:
    """A stream and its consumers at one time.

    Attributes:
        first: Number of the oldest stored message, or of the next one if there is none.
        positions: Consumer -> position, read after `first`.
        bounds: Retention bounds of the stream.
    """

    first: int
    positions: Mapping[str, ConsumerPosition]
    bounds: Bounds


class DiscardCounter:
    """Counts losses from one sample of a stream to the next. Pure.

    Args:
        start: Number of the last message that is not counted as lost by any consumer.
    """

    def __init__(self, start: int) -> None:
        self._start = start
        # Consumer -> its last position, and the number up to which its losses are counted.
        self._counted: dict[str, tuple[ConsumerPosition, int]] = {}

    def count(self, sample: StreamSample) -> dict[str, int]:
        """Return the number of messages that each consumer has lost since the last sample, if any."""
        losses = {}
        for name, position in sample.positions.items():
            before, counted = self._counted.get(name, (ConsumerPosition(), self._start))
            skipped = position.stream_sequence - counted - (position.deliveries - before.deliveries)
            counted = max(counted, position.stream_sequence)
            unreachable = sample.first - 1 - counted
            self._counted[name] = position, max(counted, sample.first - 1)
            if lost := max(0, skipped) + max(0, unreachable):
                losses[name] = lost
        return losses


async def watch_discards(
    connection: NatsConnection, streams: StreamRegistry, subject: str, closing: asyncio.Event
) -> AsyncIterator[DiscardedMessages]:
    """Yield the losses of each consumer of a subject until `closing` is set."""
    counter, counter_era = DiscardCounter(0), None
    while not closing.is_set():
        era = streams.era(subject)
        sample = await _try_to_read(connection, streams, subject)
        if f"consumer.list.{subject}" in connection.refusal.lower():
            # The server was started by an older release.
            log.warning("messages that the bus discards are not counted", extra={"subject": subject})
            await closing.wait()
            return
        # A sample that overlaps with a purge, or with the change to another server, shows neither state.
        if sample is not None and era == streams.era(subject):
            if era != counter_era:
                purged_to = streams.purged_to(subject)
                counter = DiscardCounter(sample.first - 1 if purged_to is None else purged_to)
                counter_era = era
            for consumer, count in counter.count(sample).items():
                yield DiscardedMessages(subject, consumer, count, sample.bounds)
        try:
            async with asyncio.timeout(_POLL_SECONDS):
                await closing.wait()
        except TimeoutError:
            continue


async def _try_to_read(
    connection: NatsConnection, streams: StreamRegistry, subject: str
) -> StreamSample | None:
    """Read a stream and its consumers; None if the server does not answer."""
    if not connection.connected.is_set():
        return None
    try:
        context = connection.client.jetstream(timeout=_ANSWER_SECONDS)
        with ReraiseCancellation():
            await streams.ensure_stream(context, subject)
            return await _read(context, subject)
    except (nats.errors.Error, OSError):
        return None


async def _read(context: JetStreamContext, stream: str) -> StreamSample:
    """Read a stream and all of its consumers. Raises nats.errors.Error."""
    info = await context.stream_info(stream)
    positions: dict[str, ConsumerPosition] = {}
    while True:
        page = await context.consumers_info(stream, len(positions))
        for consumer in page:
            delivered = consumer.delivered
            assert delivered is not None
            positions[consumer.name] = ConsumerPosition(delivered.stream_seq, delivered.consumer_seq)
        if len(page) < _CONSUMERS_PER_PAGE:
            bounds = Bounds(info.config.max_msgs or 0, info.config.max_bytes or 0)
            # The first number of a stream that never had a message is 0.
            return StreamSample(max(1, info.state.first_seq), positions, bounds)
