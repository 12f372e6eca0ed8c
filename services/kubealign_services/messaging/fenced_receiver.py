"""Receives messages for the driver of one fence, beside a driver that it replaces or that replaces it."""

from collections.abc import Callable
from typing import TypeVar

from kubealign_services.checkpoints.fence import StaleFence
from kubealign_services.messaging.contract import Bus, Delivery
from kubealign_services.messaging.decoding import decode_or_reject

M = TypeVar("M")

#: Consumer of the messages to the driver. All drivers share it, so that none is lost between two of them.
_CONSUMER = "driver"


async def pull_for_fence(
    bus: Bus,
    subject: str,
    fence: int,
    decode: Callable[[bytes], M],
    fence_of: Callable[[M], int],
    *,
    count: int,
    timeout: float,
) -> list[tuple[M, Delivery]]:
    """Pull messages of this fence and of lower ones, with the deliveries to settle.

    Two drivers share the consumer. Messages of a higher fence are returned to the bus for the driver that
    waits for them.

    Args:
        count, timeout: As in `Bus.pull`.

    Raises:
        StaleFence: A message of a higher fence has arrived: another driver has taken over.
    """
    messages: list[tuple[M, Delivery]] = []
    newest = fence
    for delivery in await bus.pull(subject, _CONSUMER, count, timeout):
        message = await decode_or_reject(delivery, subject, decode)
        if message is None:
            continue
        if fence_of(message) > fence:
            newest = max(newest, fence_of(message))
            await delivery.retry()
        else:
            messages.append((message, delivery))
    if newest > fence:
        raise StaleFence(f"fence {fence} has been replaced by {newest}: another driver receives {subject}")
    return messages
