"""Pulls messages from a JetStream consumer, and settles them.

A pull returns the messages available now, or else the first that arrives, and leaves no request behind.
A lingering request for several messages would go on collecting for a worker that is busy with the first. A
request that both waits and does not (no_wait with expires) ends with the first message and those available
with it. The server answers, by status header: 404 none now, or no more; 408 none in time, or other waiting
requests took the rest; 409 refused, 503 no such consumer
(https://github.com/nats-io/nats-architecture-and-design/blob/main/adr/ADR-13.md).
"""

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from kubealign_services.messaging.cancellation import ReraiseCancellation

# The server answers a request without waiting at once; after this time the answer counts as lost.
_ANSWER_SECONDS = 5.0
_NO_MESSAGE_STATUSES = ("404", "408")
# Messages in flight at the unsubscribe arrive after its confirmation (measured: 1.3 ms, on a busy machine);
# they are received for this long.
_LATE_SECONDS = 0.5
# Headers whose names begin with this are the server's.
_SERVER_HEADERS = "Nats-"


class ConsumerMissing(Exception):
    """The server does not have the consumer, or refused the request."""


class ConsumerFetch:
    """One pull request.

    `on_disconnect` may be called while it runs; the pull then ends with the messages received.

    Args:
        spawn: Runs cleanup in the background after the end.
    """

    def __init__(
        self,
        client: Client,
        stream: str,
        consumer: str,
        spawn: Callable[[Coroutine[Any, Any, Any]], object],
    ) -> None:
        self._client = client
        self._subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._inbox = client.new_inbox()
        self._spawn = spawn
        # None: the connection was lost.
        self._arrived: asyncio.Queue[Msg | None] = asyncio.Queue()
        self._finished = False
        # Number of messages that the server may still send for the last request.
        self._outstanding = 0
        self._all_received = asyncio.Event()

    def on_disconnect(self) -> None:
        self._arrived.put_nowait(None)

    async def run(self, count: int, timeout: float) -> list[Msg]:
        """Return up to `count` messages; wait up to `timeout` seconds for the first.

        Raises ConsumerMissing, nats.errors.Error.
        """
        messages: list[Msg] = []
        returned = False
        with ReraiseCancellation() as cancellation:
            subscription = await self._client.subscribe(self._inbox, cb=self._on_message)
            try:
                deadline, left = time.monotonic() + timeout, max(0.0, timeout)
                while await self._request(messages, count, left) and not messages:
                    left = deadline - time.monotonic()
                    if left <= 0:
                        break
                cancellation.raise_if_cancelled()
                returned = True
            finally:
                self._finished = True
                if not returned:
                    self._return_messages(messages)
                late = self._outstanding and self._client.is_connected
                self._spawn(
                    self._drain_and_unsubscribe(subscription) if late else self._unsubscribe(subscription)
                )
            return messages

    async def _unsubscribe(self, subscription: Subscription) -> None:
        await subscription.unsubscribe()
        # nats-py does not send it while it reconnects, but it does send the subscription and the request if
        # they are still in its buffer: the server would then send messages that nobody receives.
        if self._client.is_reconnecting:
            await self._client._send_unsubscribe(subscription._id)

    async def _drain_and_unsubscribe(self, subscription: Subscription) -> None:
        """Return messages that are still in flight as they arrive, then unsubscribe."""
        # nats-py's own drain stops receiving as soon as the server confirms the unsubscribe.
        await self._client._send_unsubscribe(subscription._id)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LATE_SECONDS):
                await self._all_received.wait()
        await subscription.drain()  # type: ignore[no-untyped-call]

    async def _request(self, messages: list[Msg], count: int, wait: float) -> bool:
        """Request `count` messages and add those that arrive, waiting for the first.

        Returns False when the connection was lost.
        """
        request: dict[str, Any] = {"batch": count, "no_wait": True}
        if wait > 0:
            request["expires"] = max(1, int(wait * 1e9))
        self._outstanding = count
        await self._client.publish(self._subject, json.dumps(request).encode(), reply=self._inbox)
        while len(messages) < count:
            try:
                async with asyncio.timeout(_ANSWER_SECONDS + (0.0 if messages else wait)):
                    message = await self._arrived.get()
            except TimeoutError:
                return False
            if message is None:
                return False
            if self._is_stream_message(message):
                messages.append(message)
                continue
            status = (message.headers or {}).get("Status", "")
            if status in _NO_MESSAGE_STATUSES:
                return True
            if messages:
                return False
            raise ConsumerMissing(f"the server answered {status} to a pull")
        return True

    async def _on_message(self, message: Msg) -> None:
        self._outstanding = self._outstanding - 1 if self._is_stream_message(message) else 0
        if self._finished:
            if not self._outstanding:
                self._all_received.set()
            self._return_messages([message])
        else:
            self._arrived.put_nowait(message)

    def _return_messages(self, messages: list[Msg]) -> None:
        while not self._arrived.empty():
            late = self._arrived.get_nowait()
            if late is not None:
                messages.append(late)
        for message in messages:
            if self._is_stream_message(message):
                self._spawn(_nak(message))

    def _is_stream_message(self, message: Msg) -> bool:
        """Return True for a message of the stream, False for a status of the request."""
        return message.subject != self._inbox


async def _nak(message: Msg) -> None:
    try:
        await message.nak()
    except nats.errors.Error:
        # Without a connection the message is redelivered after the acknowledgement wait.
        return


class JetStreamDelivery:
    """A pulled JetStream message.

    Settling it twice has no effect; settling it without a server is no error, as the message is
    redelivered.

    Args:
        age: Seconds since the server stored the message.
        is_current: Returns False once the server has lost the stream of this message. A new stream numbers
            its messages from 1 again, so an acknowledgement would settle another message.
    """

    def __init__(self, message: Msg, age: float, is_current: Callable[[], bool]) -> None:
        self.age = age
        self._is_current = is_current
        self.data = message.data
        self.headers: Mapping[str, str] = {
            name: value
            for name, value in (message.headers or {}).items()
            if not name.startswith(_SERVER_HEADERS)
        }
        self.attempt = int(message.metadata.num_delivered or 1)
        self._message = message
        self._settled = False

    async def ack(self) -> None:
        await self._settle(self._message.ack)

    async def in_progress(self) -> None:
        if not self._settled and self._is_current():
            await send_ignoring_disconnect(self._message.in_progress())

    async def reject(self) -> None:
        await self._settle(self._message.term)

    async def retry(self, delay: float = 0.0) -> None:
        await self._settle(lambda: self._message.nak(delay=delay or None))

    async def _settle(self, send: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if not self._settled:
            self._settled = True
            if self._is_current():
                await send_ignoring_disconnect(send())


async def send_ignoring_disconnect(sending: Coroutine[Any, Any, None]) -> None:
    """Send now, or with the next connection. If it is lost, the message is redelivered."""
    try:
        await sending
    except (nats.errors.ConnectionClosedError, nats.errors.OutboundBufferLimitError):
        return
