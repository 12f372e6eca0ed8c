"""What the bus is: small messages of a few kinds, each pulled by whoever has room. The checkpoint is the
truth; the bus is a cache.

Subjects of one job: `work` (WorkItem), `rollouts` (Rollout), `scores` (Score), `refit`
(WeightsAnnouncement, only the newest is kept), `refit-acks` (RefitAcknowledgement). Payloads are the
protobuf messages of kubealign.v1.
"""

from collections.abc import AsyncIterator
from typing import Protocol


class BusUnavailable(ConnectionError):
    """The bus did not answer within the deadline. The message says what was waited for."""


class PayloadTooLarge(ValueError):
    """A message is larger than the bus takes. Says both sizes."""


class Delivery(Protocol):
    """A message that was pulled and must be settled. Unsettled, it comes back to someone else after the
    acknowledgement wait."""

    data: bytes
    #: How many times it has been delivered, this time included.
    attempt: int

    async def ack(self) -> None: ...

    async def in_progress(self) -> None:
        """Ask for more time; call it at least every half acknowledgement wait."""

    async def reject(self) -> None:
        """It can never be handled: do not deliver it again."""

    async def retry(self, delay: float = 0.0) -> None:
        """Give it back to be delivered again, to anyone, after so many seconds."""


class Bus(Protocol):
    """One job's bus."""

    max_payload: int
    #: Seconds after which an unsettled delivery comes back.
    ack_wait: float

    async def publish(self, subject: str, data: bytes, message_id: str) -> None:
        """Store it; returns when the server has it. A message id seen before (within the window, also
        before a purge) is dropped by the server. Retries across a restart of the server until its deadline.
        Raises BusUnavailable, PayloadTooLarge."""

    async def pull(self, subject: str, consumer: str, count: int, timeout: float) -> list[Delivery]:
        """Up to `count` messages that no other member of `consumer` has; waits up to `timeout` seconds for
        the first; empty when none came. All who name the same consumer share its messages; different
        consumers each get all of them. A server that is restarting counts as none came."""

    def latest(self, subject: str) -> AsyncIterator[bytes]:
        """The newest message now, if there is one, then each newer one (those between may be skipped). Ends
        with close()."""

    def losses(self, subject: str) -> AsyncIterator[None]:
        """From this call on, one item each time that the server has come back without what it kept of the
        subject. This connection finds it out when it next publishes to the subject, purges it or pulls from
        it. Losses that nobody waited for count as one. Ends with close()."""

    async def purge(self, subject: str) -> None:
        """Forget all messages of the subject."""

    async def close(self) -> None: ...
