"""HTTP connections to an inference server: repetition of requests during an outage, and its errors."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import aiohttp

from kubealign_services.generation.external.contract import ExternalEngineDied
from kubealign_services.runtime.http_errors import read_error_message
from kubealign_services.runtime.process.failures import PermanentFailure

#: Environment variable with the server's key.
KEY_VARIABLE = "OPENAI_API_KEY"
#: Path that succeeds only while the server's engine lives, in vLLM and SGLang.
HEALTH_PATH = "/health"
#: Seconds before the first repetition, which double up to the last.
FIRST_DELAY = 0.1
LAST_DELAY = 2.0
_CONNECT_SECONDS = 10.0
#: Connections beside those of generating requests, so that a refit does not wait for a response.
_CONTROL_CONNECTIONS = 8
_OUTAGE_STATUSES = frozenset(
    {
        HTTPStatus.REQUEST_TIMEOUT,
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.BAD_GATEWAY,
        HTTPStatus.SERVICE_UNAVAILABLE,
        HTTPStatus.GATEWAY_TIMEOUT,
    }
)
_KEY_STATUSES = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})

logger = logging.getLogger(__name__)


class ServerError(RuntimeError):
    """An error that a repetition of the request would not repair.

    status: HTTP status of the answer. reason: the server's own message.
    """

    def __init__(self, path: str, status: int, reason: str) -> None:
        super().__init__(f"the inference server answers {path} with {status}: {reason}")
        self.status = status
        self.reason = reason


class ServerOutage(Exception):
    """The server cannot be reached, or has no capacity, at the moment."""


@dataclass(frozen=True)
class ConnectionOptions:
    """Options of a ServerConnection. Times are in seconds.

    requests: largest number of concurrent generating requests. outage_seconds: see `request`.
    """

    requests: int
    request_timeout_seconds: float
    outage_seconds: float


class ServerConnection:
    """Connections to one server, which stay open between requests. Used on one event loop.

    Cancelling a request closes its connection, at which the server stops generating.
    """

    def __init__(self, url: str, key: str | None, options: ConnectionOptions) -> None:
        """Connections are opened by the first requests.

        Args:
            url: URL of the server, without /v1.
            key: Sent as a bearer token; None: none.
        """
        self.url = url.rstrip("/")
        self._options = options
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        # Without a limit on the total time: requests that wait for a free connection count in it.
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=_CONNECT_SECONDS, sock_read=options.request_timeout_seconds
        )

        def session(connections: int) -> aiohttp.ClientSession:
            connector = aiohttp.TCPConnector(limit=connections)
            return aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout)

        self._generating = session(options.requests)
        self._control = session(_CONTROL_CONNECTIONS)

    async def close(self) -> None:
        """Close all connections."""
        await self._generating.close()
        await self._control.close()

    async def request(
        self,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        generates: bool = False,
        before_retry: Callable[[], Awaitable[None]] | None = None,
        outage_seconds: float | None = None,
    ) -> Any:
        """Return the server's answer: the value of JSON, the text of another answer.

        The request is repeated, with growing pauses, while the server is unreachable or has no capacity.

        Args:
            body: JSON of a POST request; None: GET.
            generates: The request generates; at most `ConnectionOptions.requests` of them run at once.
            before_retry: Called before each repetition.
            outage_seconds: Time after which repetitions end; None: that of the options.

        Raises:
            ServerError: The server refuses the request, or fails at it.
            PermanentFailure: The server refuses the key.
            ExternalEngineDied: The outage lasts too long, or an answer does not come in time.
        """
        limit = self._options.outage_seconds if outage_seconds is None else outage_seconds
        loop = asyncio.get_running_loop()
        deadline: float | None = None
        delay = FIRST_DELAY
        session = self._generating if generates else self._control
        while True:
            try:
                if deadline is not None and before_retry is not None:
                    await before_retry()
                return await self._attempt(session, path, body)
            except ServerOutage as outage:
                now = loop.time()
                if deadline is None:
                    deadline = now + limit
                    logger.warning("%s: %s; repeating %s for up to %g s", self.url, outage, path, limit)
                if now >= deadline:
                    raise ExternalEngineDied(
                        f"the inference server {self.url} did not answer {path} for {limit:g} s: {outage}"
                    ) from outage
                await asyncio.sleep(min(delay, deadline - now))
                delay = min(2 * delay, LAST_DELAY)

    async def _attempt(
        self, session: aiohttp.ClientSession, path: str, body: Mapping[str, Any] | None
    ) -> Any:
        method = "GET" if body is None else "POST"
        try:
            async with session.request(method, self.url + path, json=body) as response:
                status, content, kind = response.status, await response.read(), response.content_type
        except aiohttp.ConnectionTimeoutError as error:
            raise ServerOutage(f"no connection within {_CONNECT_SECONDS:g} s") from error
        except aiohttp.SocketTimeoutError as error:
            seconds = self._options.request_timeout_seconds
            raise ExternalEngineDied(
                f"the inference server {self.url} gave no answer to {path} within {seconds:g} s "
                "(rollout.engine.openai.requestTimeoutSeconds)"
            ) from error
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError) as error:
            raise ServerOutage(f"{type(error).__name__}: {error}") from error
        reason = read_error_message(content)
        if status in _OUTAGE_STATUSES:
            raise ServerOutage(f"{status}: {reason}")
        if status in _KEY_STATUSES:
            raise PermanentFailure(
                f"rollout.engine.openai: the inference server {self.url} answers {path} with {status} "
                f"({reason}): the worker needs its key in the environment variable {KEY_VARIABLE}"
            )
        if status == HTTPStatus.INTERNAL_SERVER_ERROR and not await self._is_healthy(session):
            raise ServerOutage(f"{status}: {reason}, and {HEALTH_PATH} fails")
        if status != HTTPStatus.OK:
            raise ServerError(path, status, reason)
        if not content or "json" not in kind:
            return content.decode(errors="replace")
        try:
            return json.loads(content)
        except ValueError as error:
            raise ServerError(path, status, f"no JSON: {reason}") from error

    async def _is_healthy(self, session: aiohttp.ClientSession) -> bool:
        with suppress(aiohttp.ClientError, TimeoutError):
            async with session.get(self.url + HEALTH_PATH) as response:
                return response.status == HTTPStatus.OK
        return False
