"""Fault-injecting proxy in front of the API server: delays, errors, lost answers, broken watches."""

import asyncio
import contextlib
import json
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import aiohttp
import yaml
from aiohttp import web

from .control_plane import ControlPlane

T = TypeVar("T")

_START_SECONDS = 30.0
_DROPPED_HEADERS = frozenset({"host", "content-length", "transfer-encoding", "connection", "accept-encoding"})


@dataclass(frozen=True)
class Asked:
    """A request. `verb` is the Kubernetes verb, `resource` the plural name."""

    verb: str
    resource: str
    #: Name of the object, or empty.
    name: str
    #: Number of earlier requests.
    number: int


@dataclass(frozen=True)
class Fault:
    """Fault to inject into a request; times in seconds.

    `delay` comes first. `status` answers without forwarding the request. With `lost` the server executes the
    request and its answer is discarded: the client gets `status`, or a broken connection. `watch_lasts`
    breaks a watch after that time; with `expired` a 410 in the stream ends the watch."""

    delay: float = 0.0
    status: int | None = None
    retry_after: int | None = None
    lost: bool = False
    watch_lasts: float | None = None
    expired: bool = False


Faults = Callable[[Asked], Fault | None]


def harmless(asked: Asked) -> Fault | None:
    """Inject no fault."""
    return None


class FaultyProxy:
    """A context manager that runs the proxy in its own thread. `faults` may be replaced at any time.

    Clients with `kubeconfig` connect through the proxy; `asked` lists every request so far."""

    def __init__(self, control_plane: ControlPlane, kubeconfig: Path, faults: Faults = harmless) -> None:
        self.faults = faults
        self.kubeconfig = kubeconfig
        self.asked: list[Asked] = []
        self.injected = 0
        self._upstream = control_plane.url
        self._tls: ssl.SSLContext = control_plane.tls
        self._token = control_plane.token
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="faulty-proxy", daemon=True)
        self._session: aiohttp.ClientSession | None = None
        self._runner: web.AppRunner | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        port = self._wait(self._start())
        self.kubeconfig.write_text(yaml.safe_dump(_kubeconfig(f"http://127.0.0.1:{port}", self._token)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._wait(self._stop())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(_START_SECONDS)
            self._loop.close()

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(_START_SECONDS)

    async def _start(self) -> int:
        connector = aiohttp.TCPConnector(ssl=self._tls, limit=0)
        timeout = aiohttp.ClientTimeout(total=None)
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False)
        application = web.Application(client_max_size=8 << 20)
        application.router.add_route("*", "/{path:.*}", self._pass)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        port: int = self._runner.addresses[0][1]
        return port

    async def _stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
        if self._session is not None:
            await self._session.close()

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        asked = _asked(request, len(self.asked))
        self.asked.append(asked)
        fault = self.faults(asked) or Fault()
        self.injected += fault != Fault()
        await asyncio.sleep(fault.delay)
        if fault.status is not None and not fault.lost:
            return _status(fault.status, fault.retry_after)
        async with self._forwarded(request) as answer:
            if fault.lost:
                await answer.read()
                if fault.status is not None:
                    return _status(fault.status, fault.retry_after)
                return _broken(request)
            return await self._streamed(request, answer, fault)

    @contextlib.asynccontextmanager
    async def _forwarded(self, request: web.Request) -> AsyncIterator[aiohttp.ClientResponse]:
        assert self._session is not None
        headers = {
            name: value for name, value in request.headers.items() if name.lower() not in _DROPPED_HEADERS
        }
        headers["Accept-Encoding"] = "identity"
        url = f"{self._upstream}{request.path_qs}"
        body = await request.read()
        async with self._session.request(request.method, url, headers=headers, data=body) as answer:
            yield answer

    async def _streamed(
        self, request: web.Request, answer: aiohttp.ClientResponse, fault: Fault
    ) -> web.StreamResponse:
        response = web.StreamResponse(status=answer.status)
        response.content_type = answer.content_type
        if "Retry-After" in answer.headers:
            response.headers["Retry-After"] = answer.headers["Retry-After"]
        await response.prepare(request)
        try:
            async with asyncio.timeout(fault.watch_lasts):
                async for chunk in answer.content.iter_any():
                    await response.write(chunk)
        except TimeoutError:
            if not fault.expired:
                return _broken(request)
            await response.write(
                json.dumps({"type": "ERROR", "object": _failure_status(410)}).encode() + b"\n"
            )
        await response.write_eof()
        return response


def _asked(request: web.Request, number: int) -> Asked:
    """Parse paths such as /api/v1/namespaces/NS/pods/NAME and
    /apis/GROUP/VERSION/namespaces/NS/PLURAL/NAME/status."""
    parts = [part for part in request.path.split("/") if part]
    rest = parts[2:] if parts[:1] == ["api"] else parts[3:]
    if rest[:1] == ["namespaces"] and len(rest) > 2:
        rest = rest[2:]
    resource, name = (*rest, "", "")[:2]
    verb = {"POST": "create", "PATCH": "patch", "DELETE": "delete", "PUT": "update"}.get(
        request.method, "get"
    )
    if verb == "get":
        verb = "watch" if "watch" in request.query else "get" if name else "list"
    return Asked(verb, resource, name, number)


def _broken(request: web.Request) -> web.StreamResponse:
    """Cut the connection without another byte."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response(status=500)


def _failure_status(status: int) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": "injected by the test",
        "reason": "Injected",
        "code": status,
    }


def _status(status: int, retry_after: int | None) -> web.Response:
    headers = {"Retry-After": str(retry_after)} if retry_after is not None else {}
    return web.json_response(_failure_status(status), status=status, headers=headers)


def _kubeconfig(server: str, token: str) -> dict[str, Any]:
    name = "faulty"
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": server}}],
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    }
