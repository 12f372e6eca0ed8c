"""A real S3 server (versitygw) with one bucket, and a proxy in front of it that injects faults."""

import asyncio
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from cluster.support.programs import program
from support.free_address import free_port

T = TypeVar("T")

BUCKET = "kubealign"
_ACCESS_KEY, _SECRET_KEY = "test-access", "test-secret"
_START_SECONDS = 30.0
_STOP_SECONDS = 20.0
_SLOW_DOWN = (
    b"<?xml version='1.0' encoding='UTF-8'?><Error><Code>SlowDown</Code>"
    b"<Message>Please reduce your request rate.</Message></Error>"
)


class S3Server:
    """A context manager that runs the server. Objects are plain files below `objects`.

    Raises ProgramMissing where the server has not been built on this machine.

    Args:
        host: Address of this machine on which the server listens.
    """

    def __init__(self, folder: Path, host: str = "127.0.0.1") -> None:
        self.folder = folder
        self._host = host
        self.objects = folder / "buckets" / BUCKET
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> tuple[str, int]:
        return self._host, self._port

    def environment(self, port: int | None = None, secret: str = _SECRET_KEY) -> dict[str, str]:
        """Return the variables with which clients reach the server.

        Args:
            port: Port of a proxy; None: that of the server.
        """
        return {
            "AWS_ENDPOINT_URL": f"http://{self._host}:{port or self._port}",
            "AWS_ACCESS_KEY_ID": _ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    def __enter__(self) -> Self:
        self.objects.mkdir(parents=True)
        sidecar = self.folder / "sidecar"
        sidecar.mkdir()
        command = [str(program("versitygw")), "--port", f"{self._host}:{self._port}", "--region", "us-east-1"]
        # Attributes of objects in files: not every temporary folder supports extended attributes.
        command += ["--quiet", "posix", "--sidecar", str(sidecar), str(self.folder / "buckets")]
        environment = {
            "ROOT_ACCESS_KEY": _ACCESS_KEY,
            "ROOT_SECRET_KEY": _SECRET_KEY,
            "HOME": str(self.folder),
        }
        with (self.folder / "versitygw.log").open("wb") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, env=environment, cwd=self.folder
            )
        try:
            self._wait_until_serving()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def _stop(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(timeout=_STOP_SECONDS)

    def _wait_until_serving(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + _START_SECONDS
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                break
            try:
                urllib.request.urlopen(f"http://{self._host}:{self._port}/", timeout=5).close()
                return
            except urllib.error.HTTPError:
                return  # an anonymous request is refused by a server that serves
            except OSError:
                time.sleep(0.05)
        log = (self.folder / "versitygw.log").read_text()
        raise RuntimeError(f"versitygw does not serve at {self._host}:{self._port}: {log}")


class Fault(StrEnum):
    """Fault of one request."""

    #: The server answers 503 SlowDown.
    SLOW_DOWN = "SlowDown"
    #: The connection breaks in the middle of the request's body.
    CUT = "Cut"
    #: The connection breaks at once.
    REFUSE = "Refuse"
    #: The request is executed, and the connection breaks before the answer.
    LOSE_ANSWER = "LoseAnswer"
    #: The connection breaks in the middle of the answer.
    CUT_ANSWER = "CutAnswer"
    #: The server takes the request and never answers.
    HANG = "Hang"


@dataclass(frozen=True)
class S3Request:
    """A request. target: path and query as sent. number: number of earlier requests."""

    method: str
    target: str
    body_bytes: int
    number: int


def no_fault(request: S3Request) -> Fault | None:
    """Inject no fault."""
    return None


@dataclass
class FaultyStorageProxy:
    """A context manager that runs the proxy in a thread of its own. `faults` may be replaced at any time."""

    server: S3Server
    faults: Callable[[S3Request], Fault | None] = no_fault
    requests: list[S3Request] = field(default_factory=list)
    injected: list[S3Request] = field(default_factory=list)
    port: int = 0

    def __enter__(self) -> Self:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="storage-proxy", daemon=True)
        self._thread.start()
        self._listener = self._wait(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = self._listener.sockets[0].getsockname()[1]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._wait(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_STOP_SECONDS)
        self._loop.close()

    def environment(self) -> dict[str, str]:
        """Return the variables with which clients reach the server through the proxy."""
        return self.server.environment(self.port)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_STOP_SECONDS)

    async def _close(self) -> None:
        self._listener.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one request of a connection on. The answer closes the connection."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            await self._pass(head, reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            writer.transport.abort()  # the client or the server has gone: so does the other side
        finally:
            writer.close()

    async def _pass(self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = [line for line in lines if line and not line.lower().startswith("connection:")]
        lengths = [line.partition(":")[2] for line in headers if line.lower().startswith("content-length:")]
        size = int(lengths[0]) if lengths else 0
        method, target, _ = first.split(" ")
        request = S3Request(method, target, size, len(self.requests))
        self.requests.append(request)
        fault = self.faults(request)
        if fault is not None:
            self.injected.append(request)
        if fault is Fault.REFUSE:
            writer.transport.abort()
            return
        if fault is Fault.CUT:
            await reader.readexactly(size // 2)
            writer.transport.abort()
            return
        body = await reader.readexactly(size)
        if fault is Fault.HANG:
            await reader.read()  # until the client gives up
            return
        if fault is Fault.SLOW_DOWN:
            status = b"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nConnection: close\r\n"
            writer.write(status + b"Content-Length: %d\r\n\r\n" % len(_SLOW_DOWN) + _SLOW_DOWN)
            await writer.drain()
            return
        upstream_reader, upstream = await asyncio.open_connection(*self.server.address)
        try:
            upstream.write(
                "\r\n".join([first, *headers, "Connection: close", "", ""]).encode("latin-1") + body
            )
            await upstream.drain()
            if fault is Fault.LOSE_ANSWER:
                await upstream_reader.read()
                writer.transport.abort()
                return
            while chunk := await upstream_reader.read(1 << 16):
                writer.write(chunk)
                await writer.drain()
                if fault is Fault.CUT_ANSWER:
                    writer.transport.abort()
                    return
        finally:
            upstream.close()
