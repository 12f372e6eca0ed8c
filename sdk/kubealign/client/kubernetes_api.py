"""Calls of the Kubernetes API on plain JSON, through the official client's connections and credentials.

Each call has a deadline and gives what the server sent; the client's typed methods would make models of
thousands of objects. What goes wrong is raised in the words of `errors`.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlencode, urlsplit, urlunsplit

from kubealign import __version__
from kubealign.client.errors import KubealignError, Unavailable
from kubealign.client.kubernetes_connections import Connections
from kubealign.client.kubernetes_failures import Call, WatchExpired, failure
from kubealign.client.kubernetes_login import log_in

if TYPE_CHECKING:
    import aiohttp
    from kubernetes.aio.client import ApiClient

Json = dict[str, Any]
Query = Mapping[str, str | int]

PLAIN = "application/json"
MERGE_PATCH = "application/merge-patch+json"
#: Seconds within which a call must be answered.
CALL_SECONDS = 30.0
#: A watch with bookmarks says something each minute: longer silence is a connection that broke.
WATCH_SILENCE_SECONDS = 90.0
_TRIES = 3
_LONGEST_PAUSE = 10.0
#: A log's longest line: one that a process wrote without a line break is cut by the node at 16 KiB anyway.
_LINE_BYTES = 1 << 20


class KubernetesApi:
    """Paths are the API's, such as /api/v1/pods (see kubernetes_resources). An async context manager.

    `namespace`: the one that the context names. Every method raises a KubealignError: those of
    `kubernetes_failures.failure`, and Unavailable when no whole answer came in time."""

    def __init__(
        self,
        connections: Connections,
        namespace: str,
        *,
        token: str | None = None,
        seconds: float = CALL_SECONDS,
    ) -> None:
        self.namespace = namespace
        self._connections = connections
        self._token = token
        self._seconds = seconds

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Also for all that `with_token` gave."""
        if self._token is None:
            await self._connections.close()

    @property
    def server(self) -> str:
        """The API server's address."""
        return self._connections.server

    def with_token(self, token: str) -> "KubernetesApi":
        """The same connections, as whoever this bearer token stands for; not to be closed by itself."""
        return KubernetesApi(self._connections, self.namespace, token=token, seconds=self._seconds)

    async def token(self) -> str | None:
        """The caller's bearer token; None: there is none, as with a client certificate."""
        if self._token is not None:
            return self._token
        held = await self._authorization()
        kind, _, token = (held or "").partition(" ")
        return token.strip() or None if kind.lower() == "bearer" else None

    async def get(self, path: str, query: Query | None = None) -> Json:
        return await self._call("get", path, query=query)

    async def list(self, path: str, query: Query | None = None) -> Json:
        """One page: `limit` and `continue` in `query`."""
        return await self._call("list", path, query=query)

    async def create(self, path: str, body: Json, query: Query | None = None) -> Json:
        return await self._call("create", path, query=query, body=body)

    async def merge_patch(self, path: str, body: Json, query: Query | None = None) -> Json:
        return await self._call("patch", path, query=query, body=body, media=MERGE_PATCH)

    async def delete(self, path: str, body: Json | None = None) -> Json:
        return await self._call("delete", path, body=body)

    async def raw(self, path: str, query: Query, headers: Mapping[str, str]) -> tuple[int, bytes]:
        """Status and body of a GET, whatever they are: for what the API server passes on to somebody else."""
        import aiohttp

        call = Call("get", path)
        timeout = aiohttp.ClientTimeout(total=self._seconds)
        try:
            async with self._answered(call, query=query, timeout=timeout, headers=headers) as answer:
                return answer.status, await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._away(call, error) from error

    async def watch(
        self, path: str, query: Query, silence: float = WATCH_SILENCE_SECONDS
    ) -> AsyncGenerator[Json]:
        """The events (type, object) since `resourceVersion` in `query`, until the server ends the watch. To
        be closed (contextlib.aclosing) by whoever leaves early.

        `silence`: seconds without a byte after which the connection counts as broken. Raises WatchExpired
        when only a new list helps."""
        whole = {"watch": 1, "allowWatchBookmarks": "true", **query}
        async with self._stream("watch", path, whole, silence) as answer:
            async for line in self._lines(answer):
                event = json.loads(line)
                if event.get("type") == "ERROR":
                    told = event.get("object") or {}
                    code = int(told.get("code") or HTTPStatus.INTERNAL_SERVER_ERROR)
                    raise failure(Call("watch", path), code, json.dumps(told).encode(), self.server)
                yield event

    async def stream_lines(
        self, path: str, query: Query | None = None, silence: float | None = None
    ) -> AsyncGenerator[str]:
        """The lines of a text, as they come. To be closed as `watch`."""
        async with self._stream("get", path, query, silence) as answer:
            async for line in self._lines(answer):
                yield line.decode(errors="replace")

    @asynccontextmanager
    async def socket(self, path: str, query: str) -> AsyncIterator["aiohttp.ClientWebSocketResponse"]:
        """Of a command in a pod (pods/NAME/exec): each message begins with the channel's number."""
        import aiohttp

        client = self._client()
        headers = await self._headers(PLAIN)
        # The session is made with the first request: there is none yet where this is the first.
        session: aiohttp.ClientSession | None = client.rest_client.pool_manager
        if session is None:
            await self.get("/version")
            session = client.rest_client.pool_manager
        assert session is not None
        settings = self._connections.configuration
        call = Call("create", path)
        try:
            socket = await session.ws_connect(
                f"{_websocket(self.server)}{path}?{query}",
                headers=headers,
                protocols=("v5.channel.k8s.io", "v4.channel.k8s.io"),
                timeout=aiohttp.ClientWSTimeout(ws_close=self._seconds),
                heartbeat=self._seconds,
                max_msg_size=0,
                proxy=settings.proxy,
                server_hostname=settings.tls_server_name or None,
            )
        except aiohttp.WSServerHandshakeError as error:
            raise failure(call, error.status, b"", self.server) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._away(call, error) from error
        async with socket:
            yield socket

    async def _call(self, verb: str, path: str, **how: Any) -> Json:
        import aiohttp

        call = Call(verb, path)
        timeout = aiohttp.ClientTimeout(total=self._seconds)
        for left in reversed(range(_TRIES)):
            try:
                async with self._answered(call, timeout=timeout, **how) as answer:
                    body = await answer.read()
                    if answer.status == HTTPStatus.TOO_MANY_REQUESTS and left:
                        # It was not carried out: the server asks for patience.
                        await asyncio.sleep(_pause(answer.headers))
                        continue
                    if answer.status >= HTTPStatus.BAD_REQUEST:
                        raise failure(call, answer.status, body, self.server)
                    held = json.loads(body)
                    if not isinstance(held, dict):
                        raise ValueError("it is no JSON object")
                    return held
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                # ValueError: an answer that is cut off, or comes from something between us and the server.
                raise self._away(call, error) from error
        raise AssertionError("the last try gives or raises")

    @asynccontextmanager
    async def _stream(
        self, verb: str, path: str, query: Query | None, silence: float | None
    ) -> AsyncIterator["aiohttp.ClientResponse"]:
        import aiohttp

        call = Call(verb, path)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._seconds, sock_read=silence)
        try:
            async with self._answered(call, query=query, timeout=timeout) as answer:
                if answer.status >= HTTPStatus.BAD_REQUEST:
                    raise failure(call, answer.status, await answer.read(), self.server)
                yield answer
        except (aiohttp.ClientError, TimeoutError, OSError, json.JSONDecodeError) as error:
            raise self._away(call, error) from error

    async def _lines(self, answer: "aiohttp.ClientResponse") -> AsyncIterator[bytes]:
        pending = b""
        async for chunk in answer.content.iter_any():
            *whole, pending = (pending + chunk).split(b"\n")
            for line in whole:
                yield line
            if len(pending) > _LINE_BYTES and answer.content_type != PLAIN:
                yield pending
                pending = b""
        if pending:
            yield pending

    @asynccontextmanager
    async def _answered(
        self,
        call: Call,
        *,
        timeout: "aiohttp.ClientTimeout",
        query: Query | None = None,
        body: Json | None = None,
        media: str = PLAIN,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator["aiohttp.ClientResponse"]:
        from kubernetes.aio.client.rest import RESTClientObject

        method = {"create": "POST", "patch": "PATCH", "delete": "DELETE"}.get(call.verb, "GET")
        url = self.server + call.path + (f"?{urlencode(query)}" if query else "")
        rest: RESTClientObject = self._client().rest_client
        whole = {**await self._headers(media), **(headers or {})}
        sent = await rest.request(  # type: ignore[no-untyped-call]
            method, url, headers=whole, body=body, _request_timeout=timeout
        )
        answer: aiohttp.ClientResponse = sent.response
        async with answer:
            yield answer

    def _client(self) -> "ApiClient":
        return self._connections.own() if self._token is None else self._connections.anonymous()

    async def _headers(self, media: str) -> dict[str, str]:
        headers = {"Accept": f"{PLAIN}, */*", "Content-Type": media, "User-Agent": f"kubealign/{__version__}"}
        authorization = await self._authorization()
        return {**headers, "Authorization": authorization} if authorization else headers

    async def _authorization(self) -> str | None:
        if self._token is not None:
            return f"Bearer {self._token}"
        held = await self._connections.configuration.get_api_key_with_prefix(
            "BearerToken", alias="authorization"
        )
        return None if held is None else str(held)

    def _away(self, call: Call, error: BaseException) -> KubealignError:
        why = str(error) or type(error).__name__
        return Unavailable(
            f"the API server at {self.server} did not answer ({call}): {why}. "
            "Is the cluster reachable from here?"
        )


async def connect(
    kubeconfig: Path | None = None,
    context: str | None = None,
    *,
    seconds: float = CALL_SECONDS,
) -> KubernetesApi:
    """As kubectl finds it: the kubeconfig that is named, KUBECONFIG, ~/.kube/config; in a pod its service
    account. To be closed. `seconds`: the deadline of one call.

    Raises Unavailable where there is no cluster, NotPossible for a kubeconfig that is not sound."""
    login = await log_in(kubeconfig, context)
    # Streams of logs and changes hold their connections as long as they last.
    login.configuration.connection_pool_maxsize = 0
    return KubernetesApi(Connections(login.configuration), login.namespace, seconds=seconds)


def _pause(headers: Mapping[str, str]) -> float:
    try:
        return min(_LONGEST_PAUSE, max(0.1, float(headers.get("Retry-After", "1"))))
    except ValueError:
        return 1.0


def _websocket(server: str) -> str:
    parts = urlsplit(server)
    return urlunsplit(("ws" if parts.scheme == "http" else "wss", *parts[1:]))


__all__ = ["Connections", "KubernetesApi", "WatchExpired", "connect"]
