"""An answer that goes on: sent piece by piece, with signs of life, until there is a reason to end it."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, cast

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from kubealign.client.errors import KubealignError, Unavailable
from kubealign_services.dashboard.admission import Door
from kubealign_services.dashboard.streams.hub import Hub

log = logging.getLogger(__name__)

EVENT_STREAM = "text/event-stream"
_SIGN_OF_LIFE_SECONDS = 15.0
#: So long may something be wrong with the request itself; then the answer begins.
_FIRST_SECONDS = 1.0
#: A reader that takes nothing for so long has gone, or might as well have.
_SEND_SECONDS = 30.0
_CHECK_SECONDS = 60.0


class LongAnswer(Response):
    """`parts` come as they are made; `idle` is sent where none does for a while. It ends with them, when the
    reader goes or takes nothing, after `seconds`, when the caller's token expires, and when `check`, asked
    every minute, raises Forbidden or Unauthenticated: rights that were taken away are."""

    def __init__(
        self,
        parts: AsyncIterator[bytes],
        media_type: str,
        *,
        hub: Hub,
        door: Door,
        check: Callable[[], Awaitable[None]],
        idle: bytes,
        seconds: int | None = None,
    ) -> None:
        # A proxy that collected it would keep what is live until it is old.
        super().__init__(None, headers={"X-Accel-Buffering": "no"}, media_type=media_type)
        del self.headers["content-length"]
        self._parts = cast(AsyncGenerator[bytes], parts)
        self._hub = hub
        self._door = door
        self._check = check
        self._idle = idle
        self._seconds = seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.ensure_future(_disconnected(receive))
        try:
            with self._hub.place():
                async with aclosing(self._parts) as parts:
                    await self._send(parts, gone, send)
        finally:
            gone.cancel()

    async def _send(self, parts: AsyncGenerator[bytes], gone: "asyncio.Future[None]", send: Send) -> None:
        end, next_check = self._end(), time.monotonic() + _CHECK_SECONDS
        began = False
        coming: asyncio.Future[bytes] = asyncio.ensure_future(anext(parts))
        try:
            await _either(coming, gone, _FIRST_SECONDS)
            if coming.done() and isinstance(coming.exception(), KubealignError):
                coming.result()
            await send(
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )
            began = True
            while True:
                patience = min(_SIGN_OF_LIFE_SECONDS, max(0.0, end - time.monotonic()))
                await _either(coming, gone, patience)
                if gone.done():
                    return
                if time.monotonic() >= end:
                    break
                if time.monotonic() >= next_check:
                    await self._recheck()
                    next_check = time.monotonic() + _CHECK_SECONDS
                part = self._idle
                if coming.done():
                    part = coming.result()
                    coming = asyncio.ensure_future(anext(parts))
                async with asyncio.timeout(_SEND_SECONDS):
                    await send({"type": "http.response.body", "body": part, "more_body": True})
        except StopAsyncIteration:
            pass
        except KubealignError as error:
            if not began:
                raise
            # Whoever reads comes again, and is told as an answer what is wrong.
            log.info("a stream of %s ends: %s", self._door.caller.name, error)
        finally:
            await _over(coming)
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _end(self) -> float:
        now, ends = time.monotonic(), [float("inf")]
        if self._seconds is not None:
            ends.append(now + self._seconds)
        if self._door.caller.expires is not None:
            ends.append(now + self._door.caller.expires - time.time())
        return min(ends)

    async def _recheck(self) -> None:
        try:
            await self._door.access.caller(self._door.caller.token)
            await self._check()
        except Unavailable as error:
            # Nobody can say, as when the API server restarts: what was true a minute ago counts until then.
            log.warning("a stream of %s goes on unchecked: %s", self._door.caller.name, error)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _either(one: "asyncio.Future[Any]", other: "asyncio.Future[Any]", seconds: float) -> None:
    await asyncio.wait({one, other}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)


async def _over(coming: "asyncio.Future[bytes]") -> None:
    """A generator cannot be closed while it runs."""
    coming.cancel()
    await asyncio.wait({coming})
    if not coming.cancelled():
        coming.exception()
