"""Long work on a delivery: tell the bus, as long as it lasts, that it is in good hands."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from kubealign_services.bus.contract import Delivery


@asynccontextmanager
async def in_hand(deliveries: Sequence[Delivery], ack_wait: float) -> AsyncIterator[None]:
    """While the block runs, each delivery's acknowledgement wait begins anew every third of it."""

    async def remind() -> None:
        while True:
            await asyncio.sleep(ack_wait / 3)
            await asyncio.gather(*(delivery.in_progress() for delivery in deliveries), return_exceptions=True)

    reminder = asyncio.create_task(remind())
    try:
        yield
    finally:
        reminder.cancel()
