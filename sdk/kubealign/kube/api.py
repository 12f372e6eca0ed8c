"""Kubernetes API client for plain JSON that reuses the connections and credentials of the official client.

Each call has a timeout and returns the server's JSON unchanged. The official client's typed methods build a
model of every response (for a pod, milliseconds and many times the size of the JSON) and wait up to five
minutes. Failures are raised as the exceptions of `errors`.
"""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlencode, urlsplit, urlunsplit

from kubealign.errors import KubealignError
from kubealign.kube.connections import Connections
from kubealign.kube.credentials import log_in
from kubealign.kube.documents import (
    MAX_PAGE_BYTES,
    MAX_RESPONSE_BYTES,
    parse_event,
    parse_list,
    parse_object,
)
from kubealign.kube.documents import (
    Json as Json,
)
from kubealign.kube.errors import (
    USER_ERRORS,
    ApiCall,
    ErrorResponse,
    ErrorTranslation,
    ResponseTooLarge,
    parse_retry_after,
)

if TYPE_CHECKING:
    import aiohttp
    from kubernetes.aio.client import ApiClient

Query = Mapping[str, str | int]
#: Called with (call, status, seconds) after each request; the status is "none" without a complete response.
RequestObserver = Callable[[ApiCall, str, float], None]

JSON_MEDIA_TYPE = "application/json"
MERGE_PATCH_MEDIA_TYPE = "application/merge-patch+json"
JSON_PATCH_MEDIA_TYPE = "application/json-patch+json"
#: Accept header of a response that is reduced to the object's metadata.
METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
#: Timeout of one call in seconds.
CALL_TIMEOUT_SECONDS = 30.0
#: A watch with bookmarks sends data every minute: longer silence means a broken connection.
WATCH_IDLE_TIMEOUT_SECONDS = 90.0
_ACCEPT_ANY = f"{JSON_MEDIA_TYPE}, */*"
_METHODS = {"create": "POST", "patch": "PATCH", "delete": "DELETE"}
_MAX_ATTEMPTS = 3
_MAX_RETRY_DELAY = 10.0
#: Longest log line. The node splits lines without a line break at 16 KiB anyway.
_MAX_LINE_BYTES = 1 << 20
#: Lines are read in pieces of this size, so that a burst is not copied as a whole.
_CHUNK_BYTES = 1 << 16
#: Longer documents are parsed in a thread.
_MAX_PARSED_IN_LOOP = 1 << 16


def allow_writes() -> None:
    """Allow every write: the guard of a process that needs no lease."""


def _ignore_request(call: ApiCall, status: str, seconds: float) -> None:
    """Observe nothing."""


@dataclass(frozen=True)
class ApiOptions:
    """Options of a client.

    Attributes:
        timeout: Timeout of one call in seconds.
        max_attempts: Attempts of a call that the server postpones (429).
        errors: Exceptions of failed calls.
        guard: Called before each write; raises when this process must not write any more.
        on_request: Observer of all requests.
    """

    timeout: float = CALL_TIMEOUT_SECONDS
    max_attempts: int = _MAX_ATTEMPTS
    errors: ErrorTranslation = USER_ERRORS
    guard: Callable[[], None] = allow_writes
    on_request: RequestObserver = _ignore_request


class KubernetesApi:
    """Client of one API server; an async context manager.

    Paths are API paths such as /api/v1/pods (see kubealign.kube.resources). `namespace` is the namespace
    of the kubeconfig context. Every method raises a KubealignError, as translated by `ApiOptions.errors`.
    By default these are the errors of `kubealign.kube.errors.user_error`, and Unavailable when no complete
    response arrives in time.
    """

    def __init__(
        self,
        connections: Connections,
        namespace: str,
        options: ApiOptions | None = None,
        *,
        token: str | None = None,
    ) -> None:
        self.namespace = namespace
        self._connections = connections
        self._options = options or ApiOptions()
        self._token = token

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
        return KubernetesApi(self._connections, self.namespace, self._options, token=token)

    async def bearer_token(self) -> str | None:
        """Return the caller's bearer token; None if there is none, as with a client certificate."""
        if self._token is not None:
            return self._token
        header = await self._authorization()
        scheme, _, token = (header or "").partition(" ")
        return token.strip() or None if scheme.lower() == "bearer" else None

    async def get(self, path: str, query: Query | None = None, *, accept: str = _ACCEPT_ANY) -> Json:
        return await self._call("get", path, query=query, headers={"Accept": accept})

    async def list(
        self, path: str, query: Query | None = None, *, max_bytes: int = MAX_RESPONSE_BYTES
    ) -> Json:
        """Return one page; `query` may contain `limit` and `continue`.

        Raises:
            ResponseTooLarge: The page has more than `max_bytes` bytes.
        """
        return await self._call("list", path, query=query, max_bytes=max_bytes)

    async def create(
        self, path: str, body: Json, query: Query | None = None, *, accept: str = _ACCEPT_ANY
    ) -> Json:
        return await self._call("create", path, query=query, body=body, headers={"Accept": accept})

    async def merge_patch(self, path: str, body: Json, query: Query | None = None) -> Json:
        return await self._call("patch", path, query=query, body=body, media=MERGE_PATCH_MEDIA_TYPE)

    async def json_patch(self, path: str, operations: Sequence[Json], query: Query | None = None) -> Json:
        """Apply the operations of a JSON patch (RFC 6902), all or none."""
        body = list(operations)
        return await self._call("patch", path, query=query, body=body, media=JSON_PATCH_MEDIA_TYPE)

    async def delete(self, path: str, body: Json | None = None) -> Json:
        return await self._call("delete", path, body=body)

    async def get_raw(self, path: str, query: Query, headers: Mapping[str, str]) -> tuple[int, bytes]:
        """Return the status and body of a GET request, whatever they are.

        Used for responses that the API server proxies from another server.
        """
        import aiohttp

        timeout = aiohttp.ClientTimeout(total=self._options.timeout)
        async with self._request(
            ApiCall("get", path), query=query, timeout=timeout, headers=headers
        ) as response:
            return response.status, await response.read()

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
        call = ApiCall("watch", path)
        watch_query = {"watch": 1, "allowWatchBookmarks": "true", **query}
        async with self._stream(call, watch_query, idle_timeout) as response:
            async for line in _iter_lines(response, MAX_PAGE_BYTES, may_split=False):
                if not line.strip():
                    continue
                event = await _parse(parse_event, line)
                if event.get("type") == "ERROR":
                    status = event.get("object") or {}
                    code = int(status.get("code") or HTTPStatus.INTERNAL_SERVER_ERROR)
                    raise self._options.errors.from_response(
                        call, ErrorResponse(self.server, code, json.dumps(status).encode())
                    )
                yield event

    async def stream_lines(
        self, path: str, query: Query | None = None, idle_timeout: float | None = None
    ) -> AsyncGenerator[str]:
        """Yield the lines of a text response as they arrive. Must be closed like `watch`."""
        async with self._stream(ApiCall("get", path), query, idle_timeout) as response:
            async for line in _iter_lines(response, _MAX_LINE_BYTES, may_split=True):
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
                timeout=aiohttp.ClientWSTimeout(ws_close=self._options.timeout),
                heartbeat=self._options.timeout,
                max_msg_size=0,
                proxy=settings.proxy,
                server_hostname=settings.tls_server_name or None,
            )
        except aiohttp.WSServerHandshakeError as error:
            response = ErrorResponse(self.server, error.status)
            raise self._options.errors.from_response(call, response) from error
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise self._options.errors.from_failure(call, self.server, error) from error
        async with socket:
            yield socket

    async def _call(
        self, verb: str, path: str, *, max_bytes: int = MAX_RESPONSE_BYTES, **options: Any
    ) -> Json:
        import aiohttp

        call = ApiCall(verb, path)
        timeout = aiohttp.ClientTimeout(total=self._options.timeout)
        for remaining_attempts in reversed(range(self._options.max_attempts)):
            async with self._request(call, timeout=timeout, **options) as response:
                body = await _read_body(call, response, max_bytes)
                if response.status == HTTPStatus.TOO_MANY_REQUESTS and remaining_attempts:
                    # The request was not carried out: the server asks the client to retry later.
                    await asyncio.sleep(_retry_delay(response.headers))
                    continue
                if response.status >= HTTPStatus.BAD_REQUEST:
                    raise self._error(call, response, body)
                return await _parse(parse_list if call.verb == "list" else parse_object, body)
        raise AssertionError("the last attempt returns or raises")

    @asynccontextmanager
    async def _stream(
        self, call: ApiCall, query: Query | None, idle_timeout: float | None
    ) -> AsyncIterator["aiohttp.ClientResponse"]:
        import aiohttp

        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=self._options.timeout, sock_read=idle_timeout
        )
        async with self._request(call, query=query, timeout=timeout) as response:
            if response.status >= HTTPStatus.BAD_REQUEST:
                raise self._error(call, response, await _read_body(call, response))
            yield response

    @asynccontextmanager
    async def _request(
        self,
        call: ApiCall,
        *,
        timeout: "aiohttp.ClientTimeout",
        query: Query | None = None,
        body: Json | Sequence[Json] | None = None,
        media: str = JSON_MEDIA_TYPE,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator["aiohttp.ClientResponse"]:
        """Send a request. Failures until the end of the context are translated and observed."""
        import aiohttp

        if call.verb in _METHODS:
            self._options.guard()
        started = time.monotonic()
        status = "none"
        try:
            url = self.server + call.path + (f"?{urlencode(query)}" if query else "")
            all_headers = {**await self._headers(media), **(headers or {})}
            rest_response = await self._api_client().rest_client.request(  # type: ignore[no-untyped-call]
                _METHODS.get(call.verb, "GET"), url, headers=all_headers, body=body, _request_timeout=timeout
            )
            response: aiohttp.ClientResponse = rest_response.response
            async with response:
                status = str(response.status)
                yield response
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            # ValueError: a truncated response, or one from an intermediary such as a proxy.
            status = "none"
            raise self._options.errors.from_failure(call, self.server, error) from error
        finally:
            self._options.on_request(call, status, time.monotonic() - started)

    def _error(self, call: ApiCall, response: "aiohttp.ClientResponse", body: bytes) -> KubealignError:
        retry_after = parse_retry_after(response.headers)
        return self._options.errors.from_response(
            call, ErrorResponse(self.server, response.status, body, retry_after)
        )

    def _api_client(self) -> "ApiClient":
        return self._connections.authenticated() if self._token is None else self._connections.anonymous()

    async def _headers(self, media: str) -> dict[str, str]:
        headers = {
            "Accept": _ACCEPT_ANY,
            "Content-Type": media,
            "User-Agent": self._connections.user_agent,
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
    return KubernetesApi(Connections(login.configuration), login.namespace, ApiOptions(timeout=timeout))


async def _parse(parse: Callable[[bytes], Json], body: bytes) -> Json:
    """Parse a document without blocking the event loop for long."""
    return parse(body) if len(body) <= _MAX_PARSED_IN_LOOP else await asyncio.to_thread(parse, body)


async def _read_body(
    call: ApiCall, response: "aiohttp.ClientResponse", max_bytes: int = MAX_PAGE_BYTES
) -> bytes:
    """Read the body of a response. Raises ResponseTooLarge before it takes more memory than allowed."""
    body = bytearray()
    async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
        body += chunk
        if len(body) > max_bytes:
            raise ResponseTooLarge(f"{call}: the response is longer than {max_bytes} bytes")
    return bytes(body)


async def _iter_lines(
    response: "aiohttp.ClientResponse", max_bytes: int, *, may_split: bool
) -> AsyncIterator[bytes]:
    """Yield the lines of a response without their line breaks.

    Args:
        may_split: True: longer lines are yielded in pieces. False: they raise ValueError.
    """
    pending = b""
    async for chunk in response.content.iter_chunked(_CHUNK_BYTES):
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            yield line
        if len(pending) <= max_bytes:
            continue
        if not may_split:
            raise ValueError(f"a line of the response is longer than {max_bytes} bytes")
        yield pending
        pending = b""
    if pending:
        yield pending


def _retry_delay(headers: Mapping[str, str]) -> float:
    retry_after = parse_retry_after(headers)
    return 1.0 if retry_after is None else min(_MAX_RETRY_DELAY, max(0.1, retry_after))


def _websocket_url(server: str) -> str:
    parts = urlsplit(server)
    return urlunsplit(("ws" if parts.scheme == "http" else "wss", *parts[1:]))
