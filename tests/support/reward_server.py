"""A reward server whose answers a test decides."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

from support.http_server import serving

#: Request, its JSON and its number from 0 -> answer.
Handler = Callable[[web.Request, Any, int], Awaitable[web.StreamResponse]]


class RewardServerStub:
    """Records the requests of POST; `handle` answers them."""

    def __init__(self, handle: Handler) -> None:
        self._handle = handle
        self.bodies: list[Any] = []
        self.headers: list[dict[str, str]] = []
        self.running = self.most_running = 0

    def application(self) -> web.Application:
        app = web.Application()
        app.router.add_post("/{path:.*}", self._post)
        return app

    async def _post(self, request: web.Request) -> web.StreamResponse:
        body, number = await request.json(), len(self.bodies)
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            return await self._handle(request, body, number)
        finally:
            self.running -= 1


@asynccontextmanager
async def reward_server(handle: Handler, port: int = 0) -> AsyncIterator[tuple[str, RewardServerStub]]:
    """Serve on loopback; yield URL and server."""
    stub = RewardServerStub(handle)
    async with serving(stub.application(), port) as url:
        yield url, stub


async def hang(*_: Any) -> web.StreamResponse:
    """Never answer."""
    await asyncio.Event().wait()
    raise AssertionError("the event is never set")


def chat_answer(text: str | None, tokens: int = 10) -> web.Response:
    """Return an answer of /chat/completions."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return web.json_response({"choices": [choice], "usage": {"total_tokens": tokens}})
