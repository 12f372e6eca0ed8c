"""Liveness and readiness endpoints over plain HTTP for the kubelet.

Nothing else is served, so no authentication is needed.
"""

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from types import TracebackType
from typing import Self

from kubealign_services.runtime.rpc.server import PortInUse

#: Timeout for receiving a complete request, in seconds.
_REQUEST_SECONDS = 5.0
_REQUEST_BYTES = 8192


HealthCheck = Callable[[], bool | Awaitable[bool]]


class HealthServer:
    """Serves `/livez` and `/readyz`, with the results of `live` and `ready`, while its context is open.

    A blocked event loop answers neither.

    Args:
        listen: host:port, port 0 for any free one.
        ready: Returns True when the process serves.
        live: Returns False when a computation has exceeded its deadline.

    Raises:
        PortInUse: The port is taken.
    """

    def __init__(self, listen: str, ready: HealthCheck, live: HealthCheck) -> None:
        host, _, port = listen.rpartition(":")
        self._host = host.strip("[]")
        self._port = int(port)
        self._ready = ready
        self._live = live
        self._server: asyncio.Server | None = None

    @property
    def port(self) -> int:
        """Port that the server listens at."""
        return self._port if self._server is None else int(self._server.sockets[0].getsockname()[1])

    async def __aenter__(self) -> Self:
        try:
            self._server = await asyncio.start_server(
                self._handle_request, self._host, self._port, limit=_REQUEST_BYTES
            )
        except OSError as error:
            raise PortInUse(
                f"cannot serve health at {self._host}:{self._port}: end the process that has it, "
                f"or choose another port ({error})"
            ) from error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    async def _handle_request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            # A probe that disconnects, or never sends a request, is not worth a log line.
            with contextlib.suppress(
                OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError
            ):
                async with asyncio.timeout(_REQUEST_SECONDS):
                    request = await reader.readuntil(b"\r\n\r\n")
                    writer.write(_response(await self._status(request)))
                    await writer.drain()
        finally:
            writer.close()

    async def _status(self, request: bytes) -> HTTPStatus:
        method, path, version = (*request.split(b"\r\n", 1)[0].split(b" "), b"", b"")[:3]
        if not version.startswith(b"HTTP/1."):
            return HTTPStatus.BAD_REQUEST
        if method not in (b"GET", b"HEAD"):
            return HTTPStatus.METHOD_NOT_ALLOWED
        match path.partition(b"?")[0]:
            case b"/livez":
                return await _status_of(self._live)
            case b"/readyz":
                return await _status_of(self._ready)
        return HTTPStatus.NOT_FOUND


async def _status_of(check: HealthCheck) -> HTTPStatus:
    answer = check()
    is_positive = await answer if inspect.isawaitable(answer) else answer
    return HTTPStatus.OK if is_positive else HTTPStatus.SERVICE_UNAVAILABLE


def _response(status: HTTPStatus) -> bytes:
    lines = (f"HTTP/1.1 {status.value} {status.phrase}", "Content-Length: 0", "Connection: close", "", "")
    return "\r\n".join(lines).encode()
