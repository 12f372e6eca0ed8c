"""Bus over NATS JetStream: one stream for each subject, durable consumers shared by workers, and retries
across server restarts.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from typing import Any, Self

import nats.errors
import nats.js.errors
from nats.aio.msg import Msg
from nats.js import JetStreamContext, api

from kubealign.process_settings import NatsAccess, TlsFiles
from kubealign_services.messaging.cancellation import ReraiseCancellation
from kubealign_services.messaging.contract import (
    BusUnavailable,
    Delivery,
    DiscardedMessages,
    PayloadTooLarge,
)
from kubealign_services.messaging.jetstream.connection import NatsConnection
from kubealign_services.messaging.jetstream.discards import watch_discards
from kubealign_services.messaging.jetstream.fetch import (
    ConsumerFetch,
    ConsumerMissing,
    JetStreamDelivery,
    send_ignoring_disconnect,
)
from kubealign_services.messaging.jetstream.streams import StreamRegistry
from kubealign_services.messaging.lost_streams import StreamLossTracker
from kubealign_services.messaging.memory import payload_too_large_text, unknown_subject_text
from kubealign_services.messaging.message_age import MessageAges
from kubealign_services.messaging.retention_limits import Bounds, bounds_for

#: Deliveries of a process that died are redelivered after this time. Longer work extends the deadline.
ACK_WAIT_SECONDS = 10.0

# Timeout of one attempt; the publisher's deadline spans several.
_ATTEMPT_SECONDS = 2.0
_PAUSE_SECONDS = 0.1
_IN_FLIGHT = 64
# Bytes that the server counts as payload besides the data: the headers with the message id and those of the
# publisher.
_HEADER_BYTES = 1024
_LATEST_PULL_SECONDS = 30.0
# The server removes the consumer of a vanished `latest` follower after this time.
_FOLLOWER_SECONDS = 300.0


class JetStreamBus:
    """Bus of one job. Create with `connect`."""

    def __init__(
        self,
        connection: NatsConnection,
        max_payload: int,
        ack_wait: float,
        publish_timeout: float,
        dedup_window: float,
    ) -> None:
        self.max_payload = max_payload
        self.ack_wait = ack_wait
        self._connection = connection
        self._publish_timeout = publish_timeout
        self._lost_streams = StreamLossTracker()
        self._streams = StreamRegistry(self._lost_streams, dedup_window)
        self._in_flight = asyncio.Semaphore(_IN_FLIGHT)
        self._fetches: set[ConsumerFetch] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._followers = 0
        self._ages = MessageAges()
        self._closing = asyncio.Event()

    @classmethod
    async def connect(
        cls,
        access: NatsAccess,
        tls: TlsFiles,
        *,
        name: str,
        bounds: Mapping[str, Bounds] | None = None,
        updates_bounds: bool = True,
        ack_wait: float = ACK_WAIT_SECONDS,
        publish_timeout: float = 60.0,
        dedup_window: float = 600.0,
        timeout: float = 30.0,
    ) -> Self:
        """Connect to the job's server as process `name`.

        Args:
            bounds: Retention bounds of each subject, applied by the first process that connects.
            updates_bounds: Raise the bounds of existing streams to `bounds`; only the driver may.
            ack_wait: Seconds until an unsettled delivery is redelivered.
            publish_timeout: Seconds for which `publish`, `purge` and the like are retried.
            dedup_window: Seconds for which message ids are remembered.
            timeout: Seconds for the connection.

        Raises:
            BusUnavailable: The server did not accept a connection in time.
            FileNotFoundError: A certificate file is missing.
        """
        bus: Self

        def on_disconnect() -> None:
            bus._on_disconnect()

        connection = NatsConnection(access, tls, name, on_disconnect)
        bus = cls(connection, 0, ack_wait, publish_timeout, dedup_window)
        bus._streams.bounds = bounds_for(1, 1, 1, 1) if bounds is None else bounds
        bus._streams.updates_bounds = updates_bounds
        await connection.open(timeout)
        bus.max_payload = connection.client.max_payload - _HEADER_BYTES
        return bus

    async def publish(
        self, subject: str, data: bytes, message_id: str, headers: Mapping[str, str] | None = None
    ) -> None:
        self._check(subject)
        if len(data) > self.max_payload:
            raise PayloadTooLarge(payload_too_large_text(subject, len(data), self.max_payload))

        async def attempt(context: JetStreamContext) -> None:
            await self._streams.ensure_stream(context, subject)
            # A new one for each attempt: nats-py adds the stream's name to it.
            sent = {**(headers or {}), "Nats-Msg-Id": message_id}
            await context.publish(subject, data, timeout=_ATTEMPT_SECONDS, stream=subject, headers=sent)

        what, deadline = f"store a message on {subject}", time.monotonic() + self._publish_timeout
        try:
            async with asyncio.timeout(self._publish_timeout):
                await self._in_flight.acquire()
        except TimeoutError:
            raise self._deadline_error(what, f"{_IN_FLIGHT} other messages were in flight") from None
        try:
            await self._retry_until_done(what, deadline, attempt)
        finally:
            self._in_flight.release()

    async def pull(self, subject: str, consumer: str, count: int, timeout: float) -> list[Delivery]:
        self._check(subject)
        config = self._consumer_config(consumer, api.DeliverPolicy.ALL)
        messages = await self._fetch(subject, consumer, config, count, timeout)
        loss_count = self._lost_streams.count(subject)

        def is_current() -> bool:
            return self._lost_streams.count(subject) == loss_count

        now = time.monotonic()
        # All timestamps before the first age: newer messages of the same pull improve the estimate.
        stored = [message.metadata.timestamp.timestamp() for message in messages]
        for timestamp in stored:
            self._ages.age(timestamp, now)
        return [
            JetStreamDelivery(message, self._ages.age(timestamp, now), is_current)
            for message, timestamp in zip(messages, stored, strict=True)
        ]

    async def latest(self, subject: str) -> AsyncIterator[bytes]:
        self._check(subject)
        self._followers += 1
        follower = f"latest-{self._connection.client.new_inbox().rsplit('.', 1)[-1]}-{self._followers}"
        config = self._consumer_config(follower, api.DeliverPolicy.LAST, _FOLLOWER_SECONDS)
        # Losses of the stream and sequence number of the newest message that was yielded.
        newest_seen = (0, 0)
        try:
            while not self._connection.closed:
                messages = await self._fetch(subject, follower, config, _IN_FLIGHT, _LATEST_PULL_SECONDS)
                if not messages:
                    continue
                newest = max(messages, key=lambda message: message.metadata.sequence.stream)
                position = (self._lost_streams.count(subject), newest.metadata.sequence.stream)
                for message in messages:
                    await send_ignoring_disconnect(message.ack())
                # Messages are redelivered when an acknowledgement was lost or the consumer was recreated.
                if position > newest_seen:
                    newest_seen = position
                    yield newest.data
        finally:
            if not self._connection.closed:
                self._spawn(self._delete_consumer(subject, follower))

    def count_rejected(self, subject: str) -> None:
        """Do nothing: InstrumentedBus counts."""

    def watch_data_loss(self, subject: str) -> AsyncIterator[None]:
        self._check(subject)
        return self._lost_streams.follow(subject)

    def watch_discards(self, subject: str) -> AsyncIterator[DiscardedMessages]:
        self._check(subject)
        return watch_discards(self._connection, self._streams, subject, self._closing)

    async def purge(self, subject: str) -> None:
        self._check(subject)

        async def attempt(context: JetStreamContext) -> None:
            await self._streams.purge(context, subject)

        await self._retry_until_done(f"purge {subject}", time.monotonic() + self._publish_timeout, attempt)

    async def close(self) -> None:
        """End the pulls, which hand their messages back to the server, and then the connection.

        Waits up to _ATTEMPT_SECONDS for messages that are still on their way; the server redelivers others
        after `ack_wait`.
        """
        if self._connection.closed:
            return
        # Refuses new calls, and wakes the waiting pulls as a lost connection does.
        self._connection.closed = True
        self._closing.set()
        self._on_disconnect()
        await self._lost_streams.close()
        deadline = time.monotonic() + _ATTEMPT_SECONDS
        # A task leaves the set when it ends, and may spawn further ones that hand messages back.
        while self._tasks and (left := deadline - time.monotonic()) > 0:
            await asyncio.wait(self._tasks, timeout=left)
        await self._connection.close()

    def _consumer_config(
        self, name: str, deliver_policy: api.DeliverPolicy, inactive_threshold: float | None = None
    ) -> api.ConsumerConfig:
        """Return the configuration of a consumer whose messages are redelivered until they are acknowledged.

        Otherwise a message that the server sends while the connection breaks would be lost.
        """
        return api.ConsumerConfig(
            durable_name=name,
            ack_policy=api.AckPolicy.EXPLICIT,
            deliver_policy=deliver_policy,
            ack_wait=self.ack_wait,
            max_ack_pending=-1,
            max_deliver=-1,
            inactive_threshold=inactive_threshold,
        )

    def _check(self, subject: str) -> None:
        if self._connection.closed:
            raise BusUnavailable("the bus is closed")
        if subject not in self._streams.bounds:
            raise ValueError(unknown_subject_text(subject, self._streams.bounds))

    async def _fetch(
        self, subject: str, consumer: str, config: api.ConsumerConfig, count: int, timeout: float
    ) -> list[Msg]:
        deadline = time.monotonic() + timeout
        while not self._connection.closed:
            left = deadline - time.monotonic()
            if left <= 0 and timeout > 0:
                return []
            try:
                async with asyncio.timeout(max(left, _PAUSE_SECONDS)):
                    await self._connection.connected.wait()
                context = self._connection.client.jetstream(timeout=_ATTEMPT_SECONDS)
                with ReraiseCancellation():
                    await self._streams.ensure_consumer(context, subject, consumer, config)
                return await self._run_fetch(
                    ConsumerFetch(self._connection.client, subject, consumer, self._spawn), count, left
                )
            except ConsumerMissing:
                self._streams.invalidate()
            except (nats.errors.Error, OSError):
                # Not connected, or JetStream has not started yet.
                pass
            if timeout <= 0:
                return []
            await asyncio.sleep(min(_PAUSE_SECONDS, max(0.0, deadline - time.monotonic())))
        return []

    async def _run_fetch(self, fetch: ConsumerFetch, count: int, timeout: float) -> list[Msg]:
        self._fetches.add(fetch)
        try:
            return await fetch.run(count, timeout)
        finally:
            self._fetches.discard(fetch)

    async def _retry_until_done(
        self, operation: str, deadline: float, attempt: Callable[[JetStreamContext], Awaitable[None]]
    ) -> None:
        """Retry until the attempt succeeds. Raises BusUnavailable at the deadline, with the last reason."""
        reason = "not connected"
        while (left := deadline - time.monotonic()) > 0:
            if self._connection.closed:
                raise BusUnavailable(f"the bus was closed before it could {operation}")
            try:
                async with asyncio.timeout(left):
                    await self._connection.connected.wait()
                context = self._connection.client.jetstream(timeout=_ATTEMPT_SECONDS)
                async with asyncio.timeout(3 * _ATTEMPT_SECONDS):
                    with ReraiseCancellation():
                        return await attempt(context)
            except (nats.errors.Error, OSError) as error:
                if isinstance(error, nats.js.errors.Error):
                    # The stream may have been lost with the server's store.
                    self._streams.invalidate()
                    reason = str(error)
                elif self._connection.connected.is_set():
                    # The server does not answer what it refuses: the attempt runs into its timeout.
                    reason = self._connection.refusal or str(error) or type(error).__name__
            await asyncio.sleep(_PAUSE_SECONDS)
        raise self._deadline_error(operation, reason)

    def _deadline_error(self, operation: str, reason: str) -> BusUnavailable:
        return BusUnavailable(
            f"the bus at {self._connection.address} did not {operation} within "
            f"{self._publish_timeout:g} s: {reason}"
        )

    async def _delete_consumer(self, subject: str, consumer: str) -> None:
        try:
            await self._connection.client.jetstream(timeout=_ATTEMPT_SECONDS).delete_consumer(
                subject, consumer
            )
        except (nats.errors.Error, OSError):
            # The server removes the consumer by itself.
            return

    def _on_disconnect(self) -> None:
        self._streams.on_disconnect()
        for fetch in self._fetches:
            fetch.on_disconnect()

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(_ignore_disconnect(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _ignore_disconnect(work: Coroutine[Any, Any, Any]) -> None:
    """Ignore connection errors of cleanup work: without a connection nothing has to be cleaned up."""
    try:
        await work
    except (nats.errors.Error, OSError):
        return
