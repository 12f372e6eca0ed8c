"""Control protocol of a running job: JSON lines over a Unix socket in the run directory, accessible to its
owner only.

Requests: {"scale": {GROUP: REPLICAS}} and {"status": {}}. Responses: {"processes": [...]} or {"error":
TEXT}.
"""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from kubealign.local.errors import RunRefused

SOCKET = "control.sock"
_MAX_LINE_BYTES = 65_536
_RESPONSE_SECONDS = 120.0

#: Maps a request (JSON object) to its response. Raises RunRefused for a request that cannot be met.
Handler = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


@asynccontextmanager
async def control_server(run_dir: Path, handler: Handler) -> AsyncIterator[None]:
    """Serve control requests while the context is open."""

    async def handle_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                writer.write(json.dumps(await _handle_line(line, handler)).encode() + b"\n")
                await writer.drain()
        except (ConnectionError, ValueError):
            # The client disconnected, or its line exceeds the limit.
            pass
        finally:
            writer.close()

    server = await asyncio.start_unix_server(
        handle_connection, sock=_listener(run_dir), limit=_MAX_LINE_BYTES
    )
    try:
        yield
    finally:
        server.close()
        (run_dir / SOCKET).unlink(missing_ok=True)


async def scale(run_dir: Path, replicas: int, group: str = "rollout") -> list[dict[str, Any]]:
    """Scale an elastic group of a running job and return its processes afterwards.

    Raises RunRefused when the job is not running, or the number is not allowed.
    """
    return await _request_processes(run_dir, {"scale": {group: replicas}})


async def list_processes(run_dir: Path) -> list[dict[str, Any]]:
    """Return {name, state, restarts, pid} of each process. Raises RunRefused when the job is not running."""
    return await _request_processes(run_dir, {"status": {}})


async def _request_processes(run_dir: Path, request: dict[str, Any]) -> list[dict[str, Any]]:
    try:
        async with asyncio.timeout(_RESPONSE_SECONDS):
            response = await _send_request(run_dir, request)
    except TimeoutError:
        raise RunRefused(f"the run in {run_dir} did not answer within {_RESPONSE_SECONDS:g} s") from None
    except OSError as error:
        raise RunRefused(f"no job is running in {run_dir} ({error})") from None
    if "error" in response:
        raise RunRefused(str(response["error"]))
    return list(response["processes"])


async def _send_request(run_dir: Path, request: dict[str, Any]) -> dict[str, Any]:
    with _short_socket_path(run_dir) as address:
        reader, writer = await asyncio.open_unix_connection(address)
    try:
        writer.write(json.dumps(request).encode() + b"\n")
        await writer.drain()
        line = await reader.readline()
    finally:
        writer.close()
    if not line:
        raise ConnectionResetError("the run ended before it responded")
    return dict(json.loads(line))


def _listener(run_dir: Path) -> socket.socket:
    with _short_socket_path(run_dir) as address:
        # A killed runner leaves its socket behind.
        Path(address).unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(address)
        # No client can connect before listen(), so the mode is set in time.
        Path(address).chmod(0o600)
    return listener


async def _handle_line(line: bytes, handler: Handler) -> dict[str, Any]:
    try:
        request = json.loads(line)
    except ValueError:
        return {"error": "the request is not JSON"}
    if not isinstance(request, dict) or len(request) != 1:
        return {"error": 'the request must be {"scale": {GROUP: REPLICAS}} or {"status": {}}'}
    try:
        return await handler(request)
    except RunRefused as refusal:
        return {"error": str(refusal)}


@contextmanager
def _short_socket_path(run_dir: Path) -> Iterator[str]:
    """Yield a path of the socket short enough for the kernel (108 bytes), even in a long folder path."""
    folder = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        short = Path(f"/proc/self/fd/{folder}")
        yield str((short if short.exists() else run_dir) / SOCKET)
    finally:
        os.close(folder)
