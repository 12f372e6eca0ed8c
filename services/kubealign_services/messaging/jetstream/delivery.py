"""Delivery of a JetStream message, to be settled once."""

from collections.abc import Callable, Coroutine
from typing import Any

import nats.errors
from nats.aio.msg import Msg


class JetStreamDelivery:
    """A pulled JetStream message. Settling it twice has no effect; settling it without a server is no error,
    as the message is redelivered.

    Args:
        is_current: Returns False once the server has lost the stream of this message. A new stream numbers
            its messages from 1 again, so an acknowledgement would settle another message.
    """

    def __init__(self, message: Msg, is_current: Callable[[], bool]) -> None:
        self._is_current = is_current
        self.data = message.data
        self.attempt = int(message.metadata.num_delivered or 1)
        self._message = message
        self._settled = False

    async def ack(self) -> None:
        await self._settle(self._message.ack)

    async def in_progress(self) -> None:
        if not self._settled and self._is_current():
            await _send_ignoring_disconnect(self._message.in_progress())

    async def reject(self) -> None:
        await self._settle(self._message.term)

    async def retry(self, delay: float = 0.0) -> None:
        await self._settle(lambda: self._message.nak(delay=delay or None))

    async def _settle(self, send: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if not self._settled:
            self._settled = True
            if self._is_current():
                await _send_ignoring_disconnect(send())


async def _send_ignoring_disconnect(sending: Coroutine[Any, Any, None]) -> None:
    """Send now, or with the next connection. A lost acknowledgement is no error: the message is redelivered.
    """
    try:
        await sending
    except (nats.errors.ConnectionClosedError, nats.errors.OutboundBufferLimitError):
        return
