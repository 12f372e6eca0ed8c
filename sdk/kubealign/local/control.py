"""Telling a running job something: JSON lines over a Unix socket in the run's folder, for its owner alone.

Requests: {"scale": {GROUP: REPLICAS}} and {"status": {}}. Answers: {"processes": [...]} or {"error": TEXT}.
"""

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from kubealign.local.failure import RunRefused

SOCKET = "control.sock"
_LONGEST_LINE = 65_536
_ANSWER_SECONDS = 120.0

#: A request, as a JSON object, to its answer. Raises RunRefused for one that cannot be met.
Handler = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


@asynccontextmanager
async def control_server(run_dir: Path, handler: Handler) -> AsyncIterator[None]:
    """Answers requests while it is open."""

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                writer.write(json.dumps(await _answer(line, handler)).encode() + b"\n")
                await writer.drain()
        except (ConnectionError, ValueError):
            # It went away, or its line is longer than any request.
            pass
        finally:
            writer.close()

    server = await asyncio.start_unix_server(converse, sock=_listener(run_dir), limit=_LONGEST_LINE)
    try:
        yield
    finally:
        server.close()
        (run_dir / SOCKET).unlink(missing_ok=True)


async def scale(run_dir: Path, replicas: int, group: str = "rollout") -> list[dict[str, Any]]:
    """Have a running job use this many workers of an elastic group; its processes afterwards.

    Raises RunRefused when the job is not running, or the number is not allowed."""
    return await _processes(run_dir, {"scale": {group: replicas}})


async def processes(run_dir: Path) -> list[dict[str, Any]]:
    """{name, state, restarts, pid} of each process. Raises RunRefused when the job is not running."""
    return await _processes(run_dir, {"status": {}})


async def _processes(run_dir: Path, request: dict[str, Any]) -> list[dict[str, Any]]:
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            answer = await _ask(run_dir, request)
    except TimeoutError:
        raise RunRefused(f"the run in {run_dir} did not answer within {_ANSWER_SECONDS:g} s") from None
    except OSError as error:
        raise RunRefused(f"no job is running in {run_dir} ({error})") from None
    if "error" in answer:
        raise RunRefused(str(answer["error"]))
    return list(answer["processes"])


async def _ask(run_dir: Path, request: dict[str, Any]) -> dict[str, Any]:
    with _reachable(run_dir) as address:
        reader, writer = await asyncio.open_unix_connection(address)
    try:
        writer.write(json.dumps(request).encode() + b"\n")
        await writer.drain()
        line = await reader.readline()
    finally:
        writer.close()
    if not line:
        raise ConnectionResetError("it ended before it answered")
    return dict(json.loads(line))


def _listener(run_dir: Path) -> socket.socket:
    with _reachable(run_dir) as address:
        # A killed runner leaves it behind.
        Path(address).unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(address)
        # Nobody can connect before it listens.
        Path(address).chmod(0o600)
    return listener


async def _answer(line: bytes, handler: Handler) -> dict[str, Any]:
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
def _reachable(run_dir: Path) -> Iterator[str]:
    """A name of the socket that is short enough for the kernel (108 bytes), however long the folder's is."""
    folder = os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY)
    try:
        short = Path(f"/proc/self/fd/{folder}")
        yield str((short if short.exists() else run_dir) / SOCKET)
    finally:
        os.close(folder)
