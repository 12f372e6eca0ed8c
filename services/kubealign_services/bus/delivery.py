"""A message pulled from JetStream, to be settled once."""

from collections.abc import Callable, Coroutine
from typing import Any

import nats.errors
from nats.aio.msg import Msg


class JetStreamDelivery:
    """Settling it twice does nothing; settling it without a server is no error: it comes back.

    there: whether the server still keeps what this was delivered from. Another store counts its messages
    from 1 again, and would take this one's number for another message's."""

    def __init__(self, message: Msg, there: Callable[[], bool]) -> None:
        self._there = there
        self.data = message.data
        self.attempt = int(message.metadata.num_delivered or 1)
        self._message = message
        self._settled = False

    async def ack(self) -> None:
        await self._settle(self._message.ack)

    async def in_progress(self) -> None:
        if not self._settled and self._there():
            await _sent(self._message.in_progress())

    async def reject(self) -> None:
        await self._settle(self._message.term)

    async def retry(self, delay: float = 0.0) -> None:
        await self._settle(lambda: self._message.nak(delay=delay or None))

    async def _settle(self, how: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if not self._settled:
            self._settled = True
            if self._there():
                await _sent(how())


async def _sent(sending: Coroutine[Any, Any, None]) -> None:
    """Sent now, or with the next connection. A message whose acknowledgement is lost comes back: that is no
    error."""
    try:
        await sending
    except (nats.errors.ConnectionClosedError, nats.errors.OutboundBufferLimitError):
        return
