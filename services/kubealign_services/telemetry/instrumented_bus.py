"""Bus wrapper that counts messages for Prometheus."""

from collections.abc import AsyncIterator, Mapping

from prometheus_client import Counter

from kubealign_services.messaging.contract import Bus, Delivery, DiscardedMessages
from kubealign_services.runtime.failpoints import Failpoint, failpoint


class InstrumentedBus:
    """Forwards to a bus and counts the messages.

    Args:
        messages: Counter with the labels subject and event.
        lost_messages: Counter of discarded messages, with the labels subject and consumer.
    """

    def __init__(self, bus: Bus, messages: Counter, lost_messages: Counter) -> None:
        self._bus = bus
        self._messages = messages
        self._lost_messages = lost_messages
        self.max_payload = bus.max_payload
        self.ack_wait = bus.ack_wait

    async def publish(
        self, subject: str, data: bytes, message_id: str, headers: Mapping[str, str] | None = None
    ) -> None:
        failpoint(Failpoint.BUS_BEFORE_PUBLISH)
        await self._bus.publish(subject, data, message_id, headers)
        failpoint(Failpoint.BUS_AFTER_PUBLISH)
        self._messages.labels(subject, "published").inc()

    async def pull(self, subject: str, consumer: str, count: int, timeout: float) -> list[Delivery]:
        deliveries = await self._bus.pull(subject, consumer, count, timeout)
        self._messages.labels(subject, "delivered").inc(len(deliveries))
        return [_InstrumentedDelivery(delivery, subject, self._messages) for delivery in deliveries]

    async def latest(self, subject: str) -> AsyncIterator[bytes]:
        async for data in self._bus.latest(subject):
            self._messages.labels(subject, "delivered").inc()
            yield data

    def count_rejected(self, subject: str) -> None:
        self._messages.labels(subject, "rejected").inc()

    def watch_data_loss(self, subject: str) -> AsyncIterator[None]:
        return self._bus.watch_data_loss(subject)

    async def watch_discards(self, subject: str) -> AsyncIterator[DiscardedMessages]:
        async for discarded in self._bus.watch_discards(subject):
            self._lost_messages.labels(subject, discarded.consumer).inc(discarded.count)
            yield discarded

    async def purge(self, subject: str) -> None:
        await self._bus.purge(subject)

    async def close(self) -> None:
        await self._bus.close()


class _InstrumentedDelivery:
    def __init__(self, delivery: Delivery, subject: str, messages: Counter) -> None:
        self.data = delivery.data
        self.headers = delivery.headers
        self.attempt = delivery.attempt
        self.age = delivery.age
        self._delivery = delivery
        self._subject = subject
        self._messages = messages

    async def ack(self) -> None:
        failpoint(Failpoint.BUS_BEFORE_ACK)
        await self._delivery.ack()
        failpoint(Failpoint.BUS_AFTER_ACK)
        self._messages.labels(self._subject, "acknowledged").inc()

    async def in_progress(self) -> None:
        await self._delivery.in_progress()

    async def reject(self) -> None:
        await self._delivery.reject()
        self._messages.labels(self._subject, "rejected").inc()

    async def retry(self, delay: float = 0.0) -> None:
        await self._delivery.retry(delay)
        self._messages.labels(self._subject, "returned").inc()
