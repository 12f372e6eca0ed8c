"""The health endpoints over real sockets."""

import asyncio

import pytest

from kubealign_services.runtime.process.health_server import HealthServer
from kubealign_services.runtime.rpc.server import PortInUse

pytestmark = pytest.mark.timeout(60)


class State:
    """Set by a test, read by the server."""

    ready = False
    live = True


async def status(port: int, request: bytes) -> bytes:
    """Return the first line of the answer; empty when the server closes the connection without one."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        async with asyncio.timeout(20):
            return (await reader.readline()).rstrip()
    finally:
        writer.close()


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: 10.0.0.1:8081\r\nUser-Agent: kube-probe/1.35\r\n\r\n".encode()


async def test_liveness_and_readiness() -> None:
    state = State()
    async with HealthServer("127.0.0.1:0", lambda: state.ready, lambda: state.live) as server:
        assert await status(server.port, get("/livez")) == b"HTTP/1.1 200 OK"
        assert await status(server.port, get("/readyz")) == b"HTTP/1.1 503 Service Unavailable"
        state.ready = True
        assert await status(server.port, get("/readyz?verbose")) == b"HTTP/1.1 200 OK"
        state.ready = False
        assert await status(server.port, get("/readyz")) == b"HTTP/1.1 503 Service Unavailable"
        state.live = False
        assert await status(server.port, get("/livez")) == b"HTTP/1.1 503 Service Unavailable"


@pytest.mark.parametrize(
    ("request_line", "answer"),
    [
        (b"GET / HTTP/1.1", b"HTTP/1.1 404 Not Found"),
        (b"GET /livez/.. HTTP/1.1", b"HTTP/1.1 404 Not Found"),
        (b"HEAD /livez HTTP/1.0", b"HTTP/1.1 200 OK"),
        (b"POST /livez HTTP/1.1", b"HTTP/1.1 405 Method Not Allowed"),
        (b"GET /livez", b"HTTP/1.1 400 Bad Request"),
        (b"\x16\x03\x01\x02", b"HTTP/1.1 400 Bad Request"),
        (b"", b"HTTP/1.1 400 Bad Request"),
    ],
)
async def test_other_requests(request_line: bytes, answer: bytes) -> None:
    async with HealthServer("127.0.0.1:0", lambda: True, lambda: True) as server:
        assert await status(server.port, request_line + b"\r\n\r\n") == answer


async def test_unterminated_request_is_closed() -> None:
    async with HealthServer("127.0.0.1:0", lambda: True, lambda: True) as server:
        assert await status(server.port, b"GET /livez HTTP/1.1\r\nX: " + b"x" * 100_000) == b""


async def test_silent_client_does_not_block_others() -> None:
    async with HealthServer("127.0.0.1:0", lambda: True, lambda: True) as server:
        silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(20)]
        assert await status(server.port, get("/livez")) == b"HTTP/1.1 200 OK"
        for _, writer in silent:
            writer.close()


async def test_a_port_in_use() -> None:
    async with HealthServer("127.0.0.1:0", lambda: True, lambda: True) as server:
        with pytest.raises(PortInUse, match=f"cannot serve health at 127.0.0.1:{server.port}"):
            await HealthServer(f"127.0.0.1:{server.port}", lambda: True, lambda: True).__aenter__()
