"""HTTP connections to an inference server: outages, errors and their messages, over real connections."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from kubealign_services.generation.external.contract import ExternalEngineDied
from kubealign_services.generation.external.openai.connection import (
    ConnectionOptions,
    ServerConnection,
    ServerError,
)
from kubealign_services.runtime.process.failures import PermanentFailure
from support.free_address import free_port
from support.http_server import serving

pytestmark = pytest.mark.timeout(60)

SECONDS = 30


@asynccontextmanager
async def connected(
    url: str, *, requests: int = 4, timeout: float = 20.0, outage: float = 0.5
) -> AsyncIterator[ServerConnection]:
    connection = ServerConnection(url + "/", "the key", ConnectionOptions(requests, timeout, outage))
    try:
        async with asyncio.timeout(SECONDS):
            yield connection
    finally:
        await connection.close()


def app_of(handler: object) -> web.Application:
    """Return an application with this handler for every path but that of the health, which is good."""

    async def healthy(request: web.Request) -> web.Response:
        return web.Response()

    app = web.Application()
    app.router.add_get("/health", healthy)
    app.router.add_route("*", "/{path:.*}", handler)  # type: ignore[arg-type]
    return app


async def test_requests_carry_the_key_and_json() -> None:
    async def echo(request: web.Request) -> web.Response:
        body = await request.json() if request.method == "POST" else None
        return web.json_response([request.method, request.path, request.headers["Authorization"], body])

    async with serving(app_of(echo)) as url, connected(url) as connection:
        assert await connection.request("/a") == ["GET", "/a", "Bearer the key", None]
        assert await connection.request("/b", {"c": 1}) == ["POST", "/b", "Bearer the key", {"c": 1}]


@pytest.mark.parametrize("status", [408, 429, 502, 503, 504])
async def test_a_server_without_capacity_is_asked_again(status: int) -> None:
    answers = iter([status, status, 200])
    checks = []

    async def busy(request: web.Request) -> web.Response:
        return web.json_response("done", status=next(answers))

    async def check() -> None:
        checks.append(1)

    async with serving(app_of(busy)) as url, connected(url, outage=20.0) as connection:
        assert await connection.request("/a", before_retry=check) == "done"
    assert len(checks) == 2


async def test_an_outage_that_lasts_ends_the_engine() -> None:
    async with connected(f"http://127.0.0.1:{free_port()}") as connection:
        with pytest.raises(ExternalEngineDied, match=r"did not answer /a for 0\.5 s: ClientConnectorError"):
            await connection.request("/a")
        with pytest.raises(ExternalEngineDied, match=r"for 0\.2 s"):
            await connection.request("/a", outage_seconds=0.2)


async def test_a_server_that_comes_back_is_used() -> None:
    port = free_port()

    async def fine(request: web.Request) -> web.Response:
        return web.json_response("fine")

    async with connected(f"http://127.0.0.1:{port}", outage=20.0) as connection:
        waiting = asyncio.create_task(connection.request("/a"))
        await asyncio.sleep(0)
        async with serving(app_of(fine), port):
            assert await waiting == "fine"
        # The server has closed the connection meanwhile, too.
        waiting = asyncio.create_task(connection.request("/a", {}))
        await asyncio.sleep(0)
        async with serving(app_of(fine), port):
            assert await waiting == "fine"


async def test_an_answer_that_breaks_off_is_requested_again() -> None:
    count = 0

    async def broken(request: web.Request) -> web.StreamResponse:
        nonlocal count
        count += 1
        if count < 3:
            response = web.StreamResponse(headers={"Content-Length": "100"})
            await response.prepare(request)
            await response.write(b"{")
            assert request.transport is not None
            request.transport.abort()
            return response
        return web.json_response("whole")

    async with serving(app_of(broken)) as url, connected(url, outage=20.0) as connection:
        assert await connection.request("/a", {}) == "whole"


async def test_an_answer_that_does_not_come_ends_the_engine() -> None:
    async def silent(request: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError("the event is never set")

    async with serving(app_of(silent)) as url, connected(url, timeout=0.3) as connection:
        with pytest.raises(
            ExternalEngineDied, match=r"no answer to /a within 0\.3 s .*requestTimeoutSeconds"
        ):
            await connection.request("/a", {}, generates=True)


async def test_waiting_for_a_free_connection_is_no_timeout() -> None:
    """Six requests of 0.8 s each, two of which run at once, while each may take 2 s."""
    running = most = 0

    async def slow(request: web.Request) -> web.Response:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.8)
        running -= 1
        return web.json_response("done")

    async with serving(app_of(slow)) as url, connected(url, requests=2, timeout=2.0) as connection:
        requests = [connection.request("/a", {}, generates=True) for _ in range(6)]
        assert await asyncio.gather(*requests) == ["done"] * 6
        assert most == 2


async def test_a_refit_does_not_wait_for_responses() -> None:
    started, release = asyncio.Event(), asyncio.Event()

    async def generate(request: web.Request) -> web.Response:
        if request.path == "/generate":
            started.set()
            await release.wait()
        return web.json_response(request.path)

    async with serving(app_of(generate)) as url, connected(url, requests=1) as connection:
        response = asyncio.create_task(connection.request("/generate", {}, generates=True))
        await started.wait()
        assert await connection.request("/load", {}) == "/load"
        assert not response.done()
        release.set()
        assert await response == "/generate"


async def test_a_cancelled_request_closes_its_connection() -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def generate(request: web.Request) -> web.Response:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            assert request.transport is None or request.transport.is_closing()
            cancelled.set()
        raise AssertionError("the event is never set")

    app = app_of(generate)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        async with connected(f"http://127.0.0.1:{runner.addresses[0][1]}") as connection:
            request = asyncio.create_task(connection.request("/generate", {}, generates=True))
            await started.wait()
            request.cancel()
            await cancelled.wait()
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("status", [401, 403])
async def test_a_refused_key_is_permanent(status: int) -> None:
    async def refuse(request: web.Request) -> web.Response:
        return web.json_response({"error": "Unauthorized"}, status=status)

    async with serving(app_of(refuse)) as url, connected(url) as connection:
        with pytest.raises(PermanentFailure, match=rf"/a with {status} \(Unauthorized\): .*OPENAI_API_KEY"):
            await connection.request("/a")


@pytest.mark.parametrize("status", [400, 404, 422, 500, 501])
async def test_an_error_has_the_servers_own_message(status: int) -> None:
    """An error 500 of a healthy server concerns the request alone."""

    async def fail(request: web.Request) -> web.Response:
        return web.json_response({"error": {"message": "the reason", "code": status}}, status=status)

    async with serving(app_of(fail)) as url, connected(url) as connection:
        with pytest.raises(ServerError, match=f"answers /a with {status}: the reason$") as error:
            await connection.request("/a")
    assert (error.value.status, error.value.reason) == (status, "the reason")


async def test_an_error_of_a_server_whose_engine_has_died_is_an_outage() -> None:
    async def fail(request: web.Request) -> web.Response:
        return web.json_response({"error": {"message": "EngineDeadError"}}, status=500)

    async def sick(request: web.Request) -> web.Response:
        return web.Response(status=503)

    app = web.Application()
    app.router.add_get("/health", sick)
    app.router.add_post("/a", fail)
    async with serving(app) as url, connected(url) as connection:
        with pytest.raises(ExternalEngineDied, match="500: EngineDeadError, and /health fails"):
            await connection.request("/a", {})


async def test_answers_that_are_no_json() -> None:
    async def text(request: web.Request) -> web.Response:
        kind = "application/json" if request.path == "/broken" else "text/plain"
        return web.Response(text="flushed {", content_type=kind)

    async with serving(app_of(text)) as url, connected(url) as connection:
        assert await connection.request("/text") == "flushed {"
        with pytest.raises(ServerError, match=r"no JSON: flushed \{"):
            await connection.request("/broken")
