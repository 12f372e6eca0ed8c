"""A streaming response with keep-alives and limits."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, cast

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from kubealign.client.errors import KubealignError, Unavailable
from kubealign_dashboard.streams.hub import Hub
from kubealign_dashboard.web.authorization import RequestContext

log = logging.getLogger(__name__)

EVENT_STREAM = "text/event-stream"
_KEEPALIVE_SECONDS = 15.0
#: Time within which an error becomes an error response; then the response begins.
_START_TIMEOUT_SECONDS = 1.0
#: A reader that accepts no data for this long counts as disconnected.
_SEND_TIMEOUT_SECONDS = 30.0
_CHECK_SECONDS = 60.0


@dataclass(frozen=True)
class StreamFormat:
    """Format of a stream. `idle` is the part that keeps an idle connection open."""

    media_type: str
    idle: bytes


class LiveStreamResponse(Response):
    """Sends `parts` as they arrive, and the format's `idle` part when none arrives for a while.

    It ends after the last part, when the reader disconnects or stops reading, after `seconds`, when the
    caller's token expires, and when `check`, called every minute, raises Forbidden or Unauthenticated.
    """

    def __init__(
        self,
        parts: AsyncIterator[bytes],
        stream_format: StreamFormat,
        *,
        hub: Hub,
        context: RequestContext,
        check: Callable[[], Awaitable[None]],
        seconds: int | None = None,
    ) -> None:
        # Proxies must not buffer live data.
        super().__init__(None, headers={"X-Accel-Buffering": "no"}, media_type=stream_format.media_type)
        del self.headers["content-length"]
        self._parts = cast(AsyncGenerator[bytes], parts)
        self._hub = hub
        self._context = context
        self._check = check
        self._idle = stream_format.idle
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            with self._hub.reserve_stream(self._context.caller.name):
                async with aclosing(self._parts) as parts:
                    await self._send(parts, gone, send)
        finally:
            gone.cancel()

    async def _send(self, parts: AsyncGenerator[bytes], gone: "asyncio.Future[None]", send: Send) -> None:
        end, next_check = self._deadline(), time.monotonic() + _CHECK_SECONDS
        has_started = False
        next_part: asyncio.Future[bytes] = asyncio.ensure_future(anext(parts))
        try:
            await _wait_for_any(next_part, gone, _START_TIMEOUT_SECONDS)
            if next_part.done() and isinstance(next_part.exception(), KubealignError):
                next_part.result()
            await send(
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )
            has_started = True
            while True:
                wait_seconds = min(_KEEPALIVE_SECONDS, max(0.0, end - time.monotonic()))
                await _wait_for_any(next_part, gone, wait_seconds)
                if gone.done():
                    return
                if time.monotonic() >= end:
                    break
                if time.monotonic() >= next_check:
                    await self._recheck()
                    next_check = time.monotonic() + _CHECK_SECONDS
                part = self._idle
                if next_part.done():
                    part = next_part.result()
                    next_part = asyncio.ensure_future(anext(parts))
                async with asyncio.timeout(_SEND_TIMEOUT_SECONDS):
                    await send({"type": "http.response.body", "body": part, "more_body": True})
        except StopAsyncIteration:
            pass
        except KubealignError as error:
            if not has_started:
                raise
            # The reader reconnects and receives the error as a response.
            log.info("a stream of %s ended: %s", self._context.caller.name, error)
        finally:
            await _cancel_and_wait(next_part)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _deadline(self) -> float:
        now, ends = time.monotonic(), [float("inf")]
        if self._seconds is not None:
            ends.append(now + self._seconds)
        if self._context.caller.expires is not None:
            ends.append(now + self._context.caller.expires - time.time())
        return min(ends)

    async def _recheck(self) -> None:
        try:
            await self._context.access.authenticate(self._context.caller.token)
            await self._check()
        except Unavailable as error:
            # The check failed, as when the API server restarts: the last result stays valid.
            log.warning("a stream of %s continues unchecked: %s", self._context.caller.name, error)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _wait_for_any(first: "asyncio.Future[Any]", second: "asyncio.Future[Any]", seconds: float) -> None:
    await asyncio.wait({first, second}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)


async def _cancel_and_wait(pending: "asyncio.Future[bytes]") -> None:
    """Cancel the pending item: a generator cannot be closed while it runs."""
    pending.cancel()
    await asyncio.wait({pending})
    if not pending.cancelled():
        pending.exception()
