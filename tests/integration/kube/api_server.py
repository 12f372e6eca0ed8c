"""A small HTTP server with scripted answers, for cases that a real API server rarely produces."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from kubernetes.aio.client import Configuration

from kubealign.kube.connections import Connections

Json = dict[str, Any]
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class ScriptedServer:
    """An async context manager. Each request takes the next answer; the last answer is repeated."""

    answers: list[Answer]
    #: Method, path with query and body of every request.
    asked: list[tuple[str, str, str]] = field(default_factory=list)
    _runner: web.AppRunner | None = None

    async def __aenter__(self) -> Connections:
        application = web.Application()
        application.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        settings = Configuration(host=f"http://127.0.0.1:{self._runner.addresses[0][1]}")
        self._connections = Connections(settings)
        return self._connections

    async def __aexit__(self, *_: object) -> None:
        await self._connections.close()
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.method, request.path_qs, await request.text()))
        return await next_of(self.answers)(request)


def next_of(answers: list[Answer]) -> Answer:
    """Return the next answer; the last one is repeated."""
    return answers[0] if len(answers) == 1 else answers.pop(0)


def says(body: Json, status: int = 200, **headers: str) -> Answer:
    """Return a complete response."""

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.json_response(body, status=status, headers=headers)

    return answer


def sends(text: str) -> Answer:
    """Return a complete JSON response with this text."""

    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(text=text, content_type="application/json")

    return answer


def refuses(status: int, reason: str, **headers: str) -> Answer:
    """Return an error response of an API server."""
    body = {"kind": "Status", "code": status, "reason": reason, "message": f"{reason} by the test"}
    return says(body, status, **headers)


async def hangs(request: web.Request) -> web.StreamResponse:
    """Send no answer for an hour."""
    await asyncio.sleep(3600)
    return web.Response()


async def breaks(request: web.Request) -> web.StreamResponse:
    """Close the connection in the middle of the response."""
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"items": [')
    assert request.transport is not None
    request.transport.abort()
    return response


def streams(*events: Json | str, stays: bool = False) -> Answer:
    """Send a watch with these events, or their text; `stays` keeps it open afterwards."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for event in events:
            line = event if isinstance(event, str) else json.dumps(event)
            await response.write(line.encode() + b"\n")
        if stays:
            await asyncio.sleep(3600)
        return response

    return answer
