"""A folder of a pod, unpacked here as it arrives: bounded memory, one pass, a digest at the end."""

import asyncio
import hashlib
import json
import os
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from kubealign.client.errors import NotPossible, Unavailable
from kubealign.client.kubernetes_api import KubernetesApi
from kubealign.labels import MAIN

if TYPE_CHECKING:
    import aiohttp

_STDOUT, _STDERR, _END = 1, 2, 3
#: A volume that is slow to read is patience enough.
_SILENCE_SECONDS = 120.0
_BLOCK = 1 << 20
_TOLD_BYTES = 64 << 10


class _Received:
    """What came over the channels besides the archive itself."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()
        self.size = 0
        self.told = b""
        self.end = b""

    def check(self) -> None:
        """Raises Unavailable for an archive that is not the one that was sent, NotPossible where it was not
        sent."""
        said = self.told.decode(errors="replace").strip().splitlines()
        last = said[-1] if said else ""
        end = _object(self.end.decode(errors="replace"))
        if end.get("status") == "Failure":
            raise NotPossible(f"the result cannot be read in its volume: {last or end.get('message')}")
        if not end:
            raise Unavailable("the connection ended before the result was whole: try again")
        sent = _object(last)
        if sent.get("sha256") != self.digest.hexdigest() or sent.get("bytes") != self.size:
            raise Unavailable(
                f"the result did not arrive as it was sent ({self.size} bytes of "
                f"{sent.get('bytes', 'unknown')}): try again"
            )


async def receive(api: KubernetesApi, pod: str, command: list[str], into: Path) -> None:
    """Run `command`, which writes a tar archive, in the pod at this path of the API, and unpack it in the
    folder `into`. Raises Unavailable when it does not arrive whole, NotPossible when it cannot be kept."""
    asked = [("command", part) for part in command]
    query = urlencode([*asked, ("container", MAIN), ("stdout", "true"), ("stderr", "true")])
    received = _Received()
    source, sink = os.pipe()
    unpacking = asyncio.create_task(asyncio.to_thread(_unpack, source, into))
    try:
        try:
            async with api.socket(f"{pod}/exec", query) as socket:
                await _pump(socket, sink, received)
        finally:
            os.close(sink)
        received.check()
        await unpacking
    except (OSError, tarfile.TarError) as error:
        raise await _cause(unpacking, error, into) from error
    finally:
        await asyncio.gather(unpacking, return_exceptions=True)


async def _pump(socket: "aiohttp.ClientWebSocketResponse", sink: int, received: _Received) -> None:
    from aiohttp import WSMsgType

    pending = bytearray()
    while True:
        try:
            message = await socket.receive(timeout=_SILENCE_SECONDS)
        except TimeoutError as error:
            raise Unavailable(f"waited {_SILENCE_SECONDS:g} s for more of the result") from error
        if message.type is not WSMsgType.BINARY:
            break
        channel, data = message.data[0], message.data[1:]
        if channel == _STDOUT:
            received.digest.update(data)
            received.size += len(data)
            pending += data
            if len(pending) >= _BLOCK:
                await _written(sink, bytes(pending))
                pending.clear()
        elif channel == _STDERR:
            received.told = (received.told + data)[-_TOLD_BYTES:]
        elif channel == _END:
            received.end += data
    await _written(sink, bytes(pending))


async def _written(sink: int, data: bytes) -> None:
    writing = asyncio.create_task(asyncio.to_thread(_write, sink, data))
    try:
        await asyncio.shield(writing)
    except asyncio.CancelledError:
        # The descriptor is about to be closed: not under a thread that writes to it.
        await asyncio.gather(writing, return_exceptions=True)
        raise


def _write(sink: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(sink, view) :]


def _unpack(source: int, into: Path) -> None:
    with open(source, "rb") as stream:
        with tarfile.open(fileobj=stream, mode="r|", bufsize=_BLOCK) as archive:
            archive.extractall(into, filter="data")
        # What comes after the archive's end is padding; whoever writes it must not find the pipe broken.
        while stream.read(_BLOCK):
            continue


async def _cause(unpacking: "asyncio.Task[None]", error: Exception, into: Path) -> Exception:
    """A broken pipe says only that the unpacking has ended: that one knows why."""
    [found] = await asyncio.gather(unpacking, return_exceptions=True)
    why = found if isinstance(found, Exception) else error
    if isinstance(why, tarfile.TarError) and not isinstance(why, tarfile.FilterError):
        return Unavailable(f"the result did not arrive as it was sent ({why}): try again")
    return NotPossible(f"the result cannot be unpacked in {into}: {why}")


def _object(text: str) -> dict[str, object]:
    try:
        held = json.loads(text)
    except ValueError:
        return {}
    return held if isinstance(held, dict) else {}
