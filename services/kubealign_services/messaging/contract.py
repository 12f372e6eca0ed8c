"""Contract of the message bus: small messages on a few subjects, pulled by workers with free capacity.

The checkpoint is the source of truth; the bus is a cache.

Subjects of one job: `work` (WorkItem), `rollouts` (Rollout), `scores` (Score), `refit`
(WeightsAnnouncement, only the newest is kept), `refit-acks` (RefitAcknowledgement), `environments`
(EnvironmentWorkerState). Payloads are the protobuf messages of kubealign.v1.
"""

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from kubealign_services.messaging.retention_limits import Bounds


class BusUnavailable(ConnectionError):
    """The bus did not answer within the deadline. The message names the operation."""


class PayloadTooLarge(ValueError):
    """A message exceeds the size limit of the bus. Names both sizes."""


@dataclass(frozen=True)
class DiscardedMessages:
    """Messages that the bus removed to make room for newer ones before a consumer had received them.

    Attributes:
        count: Number of messages.
        bounds: Retention bounds of the subject.
    """

    subject: str
    consumer: str
    count: int
    bounds: Bounds


class Delivery(Protocol):
    """A pulled message that must be settled.

    Unsettled, it is redelivered to another member after the acknowledgement wait.
    """

    data: bytes
    #: Headers of the message, without those of the bus itself; empty: it has none. Names and values are not
    #: checked.
    headers: Mapping[str, str]
    #: Number of deliveries so far, including this one.
    attempt: int
    #: Seconds since the bus stored the message, by clocks that need not agree; too small where this process
    #: has received no newer message.
    age: float

    async def ack(self) -> None: ...

    async def in_progress(self) -> None:
        """Extend the acknowledgement deadline; must be called at least every half acknowledgement wait."""

    async def reject(self) -> None:
        """Settle a message that can never be handled: it is not redelivered."""

    async def retry(self, delay: float = 0.0) -> None:
        """Return the message for redelivery to any member, after `delay` seconds."""


class Bus(Protocol):
    """Message bus of one job."""

    max_payload: int
    #: Seconds after which an unsettled delivery is redelivered.
    ack_wait: float

    async def publish(
        self, subject: str, data: bytes, message_id: str, headers: Mapping[str, str] | None = None
    ) -> None:
        """Store a message; return once the server has stored it.

        A message id seen before (within the deduplication window, also before a purge) is dropped by the
        server. Retries across a restart of the server until its deadline. Raises BusUnavailable,
        PayloadTooLarge.

        Args:
            headers: Few and short: they and the message id have 1 KiB. The handling of a message must not
                depend on them: a process of an earlier version neither sends nor reads headers.
        """

    async def pull(self, subject: str, consumer: str, count: int, timeout: float) -> list[Delivery]:
        """Return up to `count` messages that no other member of `consumer` has.

        Waits up to `timeout` seconds for the first message; returns an empty list when none arrived, also
        while the server restarts. Members of one consumer share its messages; each consumer gets all
        messages.
        """

    def latest(self, subject: str) -> AsyncIterator[bytes]:
        """Yield the newest message, if there is one, then each newer one (intermediate ones may be skipped).

        Ends with close().
        """

    def count_rejected(self, subject: str) -> None:
        """Count a message of `latest` that can never be handled, as `Delivery.reject` is counted."""

    def watch_data_loss(self, subject: str) -> AsyncIterator[None]:
        """Yield once each time the server has lost the stored messages of the subject, from this call on.

        This connection detects the loss when it next publishes to the subject, purges it or pulls from it.
        Losses that occurred while no caller waited count as one. Ends with close().
        """

    def watch_discards(self, subject: str) -> AsyncIterator[DiscardedMessages]:
        """Yield, within seconds, the messages that each consumer lost to the retention bounds.

        Counts from the first item that is requested, or from the last purge by this connection; a consumer
        that is created later has lost what was removed before. Messages that were delivered, purged, or lost
        with the server's store do not count. The count is never too large. It may be too small by the
        redeliveries of the last seconds, and by what a restart of the server hides. Ends with close(), and
        where the server does not permit the count.
        """

    async def purge(self, subject: str) -> None:
        """Delete all messages of the subject."""

    async def close(self) -> None: ...
