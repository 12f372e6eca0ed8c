"""Kubernetes API client for plain JSON that reuses the connections and credentials of the official client.

Each call has a timeout and returns the server's JSON unchanged: the official client's typed methods would
build models of thousands of objects. Failures are raised as the exceptions of `errors`.
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
from kubealign.errors import KubealignError, Unavailable
from kubealign.kube.connections import Connections
from kubealign.kube.credentials import log_in
from kubealign.kube.errors import ApiCall, WatchExpired, error_from_response

if TYPE_CHECKING:
    import aiohttp
    from kubernetes.aio.client import ApiClient

Json = dict[str, Any]
Query = Mapping[str, str | int]

JSON_MEDIA_TYPE = "application/json"
MERGE_PATCH_MEDIA_TYPE = "application/merge-patch+json"
#: Timeout of one call in seconds.
CALL_TIMEOUT_SECONDS = 30.0
#: A watch with bookmarks sends data every minute: longer silence means a broken connection.
WATCH_IDLE_TIMEOUT_SECONDS = 90.0
_MAX_ATTEMPTS = 3
_MAX_RETRY_DELAY = 10.0
#: Longest log line. The node splits lines without a line break at 16 KiB anyway.
_MAX_LINE_BYTES = 1 << 20


class KubernetesApi:
    """Client of one API server; an async context manager.

    Paths are API paths such as /api/v1/pods (see kubealign.kube.resources). `namespace` is the namespace
    of the kubeconfig context. Every method raises a KubealignError: those of
    `kubealign.kube.errors.error_from_response`, and Unavailable when no complete response arrives in time.
    """

    def __init__(
        self,
        connections: Connections,
        namespace: str,
        *,
        token: str | None = None,
        timeout: float = CALL_TIMEOUT_SECONDS,
    ) -> None:
        self.namespace = namespace
        self._connections = connections
        self._token = token
        self._timeout = timeout

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections, including those of clients returned by `with_token`."""
        if self._token is None:
            await self._connections.close()

    @property
    def server(self) -> str:
        """Address of the API server."""
        return self._connections.server

    def with_token(self, token: str) -> "KubernetesApi":
        """Return a client with the same connections that authenticates with this bearer token.

        The returned client must not be closed separately.
        """
        return KubernetesApi(self._connections, self.namespace, token=token, timeout=self._timeout)

    async def bearer_token(self) -> str | None:
        """Return the caller's bearer token; None if there is none, as with a client certificate."""
        if self._token is not None:
            return self._token
        header = await self._authorization()
        scheme, _, token = (header or "").partition(" ")
        return token.strip() or None if scheme.lower() == "bearer" else None

    async def get(self, path: str, query: Query | None = None) -> Json:
        return await self._call("get", path, query=query)

    async def list(self, path: str, query: Query | None = None) -> Json:
        """Return one page; `query` may contain `limit` and `continue`."""
        return await self._call("list", path, query=query)

    async def create(self, path: str, body: Json, query: Query | None = None) -> Json:
        return await self._call("create", path, query=query, body=body)

    async def merge_patch(self, path: str, body: Json, query: Query | None = None) -> Json:
        return await self._call("patch", path, query=query, body=body, media=MERGE_PATCH_MEDIA_TYPE)

    async def delete(self, path: str, body: Json | None = None) -> Json:
        return await self._call("delete", path, body=body)

    async def get_raw(self, path: str, query: Query, headers: Mapping[str, str]) -> tuple[int, bytes]:
        """Return the status and body of a GET request, whatever they are.

        Used for responses that the API server proxies from another server.
        """
        import aiohttp

        call = ApiCall("get", path)
        timeout = aiohttp.ClientTimeout(total=self._timeout)
        try:
            async with self._request(call, query=query, timeout=timeout, headers=headers) as response:
                return response.status, await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._unavailable(call, error) from error

    async def watch(
        self, path: str, query: Query, idle_timeout: float = WATCH_IDLE_TIMEOUT_SECONDS
    ) -> AsyncGenerator[Json]:
        """Yield the events (type, object) since the `resourceVersion` in `query` until the server ends the
        watch.

        A caller that stops early must close the generator (contextlib.aclosing).

        Args:
            idle_timeout: Seconds without a byte after which the connection is considered broken.

        Raises:
            WatchExpired: The resource version is too old; a new list is required.
        """
        watch_query = {"watch": 1, "allowWatchBookmarks": "true", **query}
        async with self._stream("watch", path, watch_query, idle_timeout) as answer:
            async for line in self._iter_lines(answer):
                event = json.loads(line)
                if event.get("type") == "ERROR":
                    status = event.get("object") or {}
                    code = int(status.get("code") or HTTPStatus.INTERNAL_SERVER_ERROR)
                    raise error_from_response(
                        ApiCall("watch", path), code, json.dumps(status).encode(), self.server
                    )
                yield event

    async def stream_lines(
        self, path: str, query: Query | None = None, idle_timeout: float | None = None
    ) -> AsyncGenerator[str]:
        """Yield the lines of a text response as they arrive. Must be closed like `watch`."""
        async with self._stream("get", path, query, idle_timeout) as answer:
            async for line in self._iter_lines(answer):
                yield line.decode(errors="replace")

    @asynccontextmanager
    async def open_websocket(self, path: str, query: str) -> AsyncIterator["aiohttp.ClientWebSocketResponse"]:
        """Open the WebSocket of a command in a pod (pods/NAME/exec).

        Each message begins with the channel number.
        """
        import aiohttp

        client = self._api_client()
        headers = await self._headers(JSON_MEDIA_TYPE)
        # aiohttp's session is created by the first request, which may not have been sent yet.
        session: aiohttp.ClientSession | None = client.rest_client.pool_manager
        if session is None:
            await self.get("/version")
            session = client.rest_client.pool_manager
        assert session is not None
        settings = self._connections.configuration
        call = ApiCall("create", path)
        try:
            socket = await session.ws_connect(
                f"{_websocket_url(self.server)}{path}?{query}",
                headers=headers,
                protocols=("v5.channel.k8s.io", "v4.channel.k8s.io"),
                timeout=aiohttp.ClientWSTimeout(ws_close=self._timeout),
                heartbeat=self._timeout,
                max_msg_size=0,
                proxy=settings.proxy,
                server_hostname=settings.tls_server_name or None,
            )
        except aiohttp.WSServerHandshakeError as error:
            raise error_from_response(call, error.status, b"", self.server) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._unavailable(call, error) from error
        async with socket:
            yield socket

    async def _call(self, verb: str, path: str, **options: Any) -> Json:
        import aiohttp

        call = ApiCall(verb, path)
        timeout = aiohttp.ClientTimeout(total=self._timeout)
        for remaining_attempts in reversed(range(_MAX_ATTEMPTS)):
            try:
                async with self._request(call, timeout=timeout, **options) as answer:
                    body = await answer.read()
                    if answer.status == HTTPStatus.TOO_MANY_REQUESTS and remaining_attempts:
                        # The request was not carried out: the server asks the client to retry later.
                        await asyncio.sleep(_retry_delay(answer.headers))
                        continue
                    if answer.status >= HTTPStatus.BAD_REQUEST:
                        raise error_from_response(call, answer.status, body, self.server)
                    result = json.loads(body)
                    if not isinstance(result, dict):
                        raise ValueError("the response is not a JSON object")
                    return result
            except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
                # ValueError: a truncated response, or one from an intermediary such as a proxy.
                raise self._unavailable(call, error) from error
        raise AssertionError("the last attempt returns or raises")

    @asynccontextmanager
    async def _stream(
        self, verb: str, path: str, query: Query | None, idle_timeout: float | None
    ) -> AsyncIterator["aiohttp.ClientResponse"]:
        import aiohttp

        call = ApiCall(verb, path)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._timeout, sock_read=idle_timeout)
        try:
            async with self._request(call, query=query, timeout=timeout) as answer:
                if answer.status >= HTTPStatus.BAD_REQUEST:
                    raise error_from_response(call, answer.status, await answer.read(), self.server)
                yield answer
        except (aiohttp.ClientError, TimeoutError, OSError, json.JSONDecodeError) as error:
            raise self._unavailable(call, error) from error

    async def _iter_lines(self, answer: "aiohttp.ClientResponse") -> AsyncIterator[bytes]:
        pending = b""
        async for chunk in answer.content.iter_any():
            *lines, pending = (pending + chunk).split(b"\n")
            for line in lines:
                yield line
            if len(pending) > _MAX_LINE_BYTES and answer.content_type != JSON_MEDIA_TYPE:
                yield pending
                pending = b""
        if pending:
            yield pending

    @asynccontextmanager
    async def _request(
        self,
        call: ApiCall,
        *,
        timeout: "aiohttp.ClientTimeout",
        query: Query | None = None,
        body: Json | None = None,
        media: str = JSON_MEDIA_TYPE,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator["aiohttp.ClientResponse"]:
        from kubernetes.aio.client.rest import RESTClientObject

        method = {"create": "POST", "patch": "PATCH", "delete": "DELETE"}.get(call.verb, "GET")
        url = self.server + call.path + (f"?{urlencode(query)}" if query else "")
        rest: RESTClientObject = self._api_client().rest_client
        all_headers = {**await self._headers(media), **(headers or {})}
        rest_response = await rest.request(  # type: ignore[no-untyped-call]
            method, url, headers=all_headers, body=body, _request_timeout=timeout
        )
        answer: aiohttp.ClientResponse = rest_response.response
        async with answer:
            yield answer

    def _api_client(self) -> "ApiClient":
        return self._connections.authenticated() if self._token is None else self._connections.anonymous()

    async def _headers(self, media: str) -> dict[str, str]:
        headers = {
            "Accept": f"{JSON_MEDIA_TYPE}, */*",
            "Content-Type": media,
            "User-Agent": f"kubealign/{__version__}",
        }
        authorization = await self._authorization()
        return {**headers, "Authorization": authorization} if authorization else headers

    async def _authorization(self) -> str | None:
        if self._token is not None:
            return f"Bearer {self._token}"
        header = await self._connections.configuration.get_api_key_with_prefix(
            "BearerToken", alias="authorization"
        )
        return None if header is None else str(header)

    def _unavailable(self, call: ApiCall, error: BaseException) -> KubealignError:
        reason = str(error) or type(error).__name__
        return Unavailable(
            f"the API server at {self.server} did not answer ({call}): {reason}. "
            "Is the cluster reachable from here?"
        )


async def connect(
    kubeconfig: Path | None = None,
    context: str | None = None,
    *,
    timeout: float = CALL_TIMEOUT_SECONDS,
) -> KubernetesApi:
    """Connect to a cluster, located in the same way as by kubectl.

    The first of these is used: the given kubeconfig, KUBECONFIG, ~/.kube/config, the service account of
    the pod. The caller must close the returned client.

    Args:
        timeout: Timeout of one call in seconds.

    Raises:
        Unavailable: No cluster was found.
        NotPossible: The kubeconfig is invalid.
    """
    login = await log_in(kubeconfig, context)
    # Log and watch streams occupy their connections for as long as they last.
    login.configuration.connection_pool_maxsize = 0
    return KubernetesApi(Connections(login.configuration), login.namespace, timeout=timeout)


def _retry_delay(headers: Mapping[str, str]) -> float:
    try:
        return min(_MAX_RETRY_DELAY, max(0.1, float(headers.get("Retry-After", "1"))))
    except ValueError:
        return 1.0


def _websocket_url(server: str) -> str:
    parts = urlsplit(server)
    return urlunsplit(("ws" if parts.scheme == "http" else "wss", *parts[1:]))


__all__ = ["Connections", "KubernetesApi", "WatchExpired", "connect"]
