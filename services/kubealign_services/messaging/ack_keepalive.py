"""Extends the acknowledgement deadline of deliveries while they are processed."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from kubealign_services.messaging.contract import Delivery


@asynccontextmanager
async def extend_ack_deadline(deliveries: Sequence[Delivery], ack_wait: float) -> AsyncIterator[None]:
    """Extend the acknowledgement deadline of each delivery every third of `ack_wait` while the block runs."""

    async def remind() -> None:
        while True:
            await asyncio.sleep(ack_wait / 3)
            await asyncio.gather(*(delivery.in_progress() for delivery in deliveries), return_exceptions=True)

    reminder = asyncio.create_task(remind())
    try:
        yield
    finally:
        reminder.cancel()
