"""Streams a folder out of a pod and unpacks it on arrival, with bounded memory and a final digest check."""

import asyncio
import hashlib
import json
import os
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from kubealign.client.errors import NotPossible, Unavailable
from kubealign.kube.api import KubernetesApi
from kubealign.labels import MAIN_CONTAINER

if TYPE_CHECKING:
    import aiohttp

_STDOUT, _STDERR, _STATUS = 1, 2, 3
#: Allows for a slow volume.
_IDLE_TIMEOUT_SECONDS = 120.0
_BLOCK_BYTES = 1 << 20
_MAX_STDERR_BYTES = 64 << 10


class _ReceivedStream:
    """State of the channels other than the archive."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()
        self.size = 0
        self.stderr = b""
        self.status = b""

    def check(self) -> None:
        """Check that the archive is complete.

        Raises Unavailable if it differs from the one that was sent, NotPossible if sending failed.
        """
        lines = self.stderr.decode(errors="replace").strip().splitlines()
        last = lines[-1] if lines else ""
        end = _parse_object(self.status.decode(errors="replace"))
        if end.get("status") == "Failure":
            raise NotPossible(f"the result cannot be read from its volume: {last or end.get('message')}")
        if not end:
            raise Unavailable("the connection ended before the result was complete: try again")
        sent = _parse_object(last)
        if sent.get("sha256") != self.digest.hexdigest() or sent.get("bytes") != self.size:
            raise Unavailable(
                f"the result did not arrive as it was sent ({self.size} bytes of "
                f"{sent.get('bytes', 'unknown')}): try again"
            )


async def receive_folder(api: KubernetesApi, pod: str, command: list[str], into: Path) -> None:
    """Run `command`, which writes a tar archive, in the pod at this API path, and unpack the archive into
    `into`.

    Raises Unavailable if the archive arrives incomplete, NotPossible if it cannot be unpacked.
    """
    command_query = [("command", part) for part in command]
    query = urlencode([*command_query, ("container", MAIN_CONTAINER), ("stdout", "true"), ("stderr", "true")])
    received = _ReceivedStream()
    source, sink = os.pipe()
    unpacking = asyncio.create_task(asyncio.to_thread(_unpack, source, into))
    try:
        try:
            async with api.open_websocket(f"{pod}/exec", query) as socket:
                await _pump(socket, sink, received)
        finally:
            os.close(sink)
        received.check()
        await unpacking
    except (OSError, tarfile.TarError) as error:
        raise await _failure_cause(unpacking, error, into) from error
    finally:
        await asyncio.gather(unpacking, return_exceptions=True)


async def _pump(socket: "aiohttp.ClientWebSocketResponse", sink: int, received: _ReceivedStream) -> None:
    from aiohttp import WSMsgType

    pending = bytearray()
    while True:
        try:
            message = await socket.receive(timeout=_IDLE_TIMEOUT_SECONDS)
        except TimeoutError as error:
            raise Unavailable(f"waited {_IDLE_TIMEOUT_SECONDS:g} s for more of the result") from error
        if message.type is not WSMsgType.BINARY:
            break
        channel, data = message.data[0], message.data[1:]
        if channel == _STDOUT:
            received.digest.update(data)
            received.size += len(data)
            pending += data
            if len(pending) >= _BLOCK_BYTES:
                await _write_async(sink, bytes(pending))
                pending.clear()
        elif channel == _STDERR:
            received.stderr = (received.stderr + data)[-_MAX_STDERR_BYTES:]
        elif channel == _STATUS:
            received.status += data
    await _write_async(sink, bytes(pending))


async def _write_async(sink: int, data: bytes) -> None:
    writing = asyncio.create_task(asyncio.to_thread(_write, sink, data))
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        # The descriptor is closed next, which must not happen while a thread writes to it.
        await asyncio.gather(writing, return_exceptions=True)
        raise


def _write(sink: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(sink, view) :]


def _unpack(source: int, into: Path) -> None:
    with open(source, "rb") as stream:
        with tarfile.open(fileobj=stream, mode="r|", bufsize=_BLOCK_BYTES) as archive:
            archive.extractall(into, filter=_accept_plain)
        # Padding follows the archive's end; it is read so that its writer does not get a broken pipe.
        while stream.read(_BLOCK_BYTES):
            continue


class _NotPlain(tarfile.FilterError):
    """A member of the archive is neither a file nor a folder."""


def _accept_plain(member: tarfile.TarInfo, into: str) -> tarfile.TarInfo:
    """Accept files and folders within `into`. A result has no links, with which archives reach other folders.

    Raises tarfile.FilterError.
    """
    if not (member.isfile() or member.isdir()):
        raise _NotPlain(f"{member.name} is neither a file nor a folder")
    return tarfile.data_filter(member, into)


async def _failure_cause(unpacking: "asyncio.Task[None]", error: Exception, into: Path) -> Exception:
    """Return the failure of the unpacking task: a broken pipe only states that the task has ended."""
    [outcome] = await asyncio.gather(unpacking, return_exceptions=True)
    cause = outcome if isinstance(outcome, Exception) else error
    if isinstance(cause, tarfile.TarError) and not isinstance(cause, tarfile.FilterError):
        return Unavailable(f"the result did not arrive as it was sent ({cause}): try again")
    return NotPossible(f"the result cannot be unpacked in {into}: {cause}")


def _parse_object(text: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
