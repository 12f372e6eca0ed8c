"""Minimal Kubernetes client of a simulated kubelet, on plain JSON.

The client is fast enough for thousands of pods, and retries while the API server is away."""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

import aiohttp

from .behaviour import Json

_RETRY_SECONDS = 0.2
_ATTEMPTS = 300
_REQUEST_SECONDS = 30
# The API server ends a watch itself after this time, so that a silent connection is noticed.
_WATCH_SECONDS = 240
_PASSING = frozenset({429, 500, 502, 503, 504})

Verdict = tuple[int, Json]


class Rest:
    """An async context manager. `call` retries transient failures for about a minute."""

    def __init__(self, url: str, tls: ssl.SSLContext, token: str) -> None:
        self._url = url
        self._tls = tls
        self._headers = {"Authorization": f"Bearer {token}"}
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(
            self._url,
            headers=self._headers,
            connector=aiohttp.TCPConnector(ssl=self._tls, limit=24),
            timeout=aiohttp.ClientTimeout(total=_REQUEST_SECONDS),
            read_bufsize=1 << 20,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.session.close()

    @property
    def session(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("used outside `async with`")
        return self._session

    async def call(self, method: str, path: str, body: Json | None = None, kind: str = "json") -> Verdict:
        """Return status and body of the answer; `kind` is the media type after `application/`.

        Raises ConnectionError when every attempt failed."""
        headers = {"Content-Type": f"application/{kind}"}
        data = json.dumps(body) if body is not None else None
        last: object = None
        for _ in range(_ATTEMPTS):
            try:
                async with self.session.request(method, path, data=data, headers=headers) as answer:
                    if answer.status not in _PASSING:
                        return answer.status, await answer.json()
                    last = answer.status
            except (aiohttp.ClientError, TimeoutError, ConnectionError) as error:
                last = error
            await asyncio.sleep(_RETRY_SECONDS)
        raise ConnectionError(f"{method} {path}: no answer after {_ATTEMPTS} attempts; the last one: {last}")

    async def watch(self, path: str, version: str) -> AsyncIterator[Json]:
        """Yield the events since a resource version, until the watch ends or the connection breaks.

        `path` already has a query string."""
        timeout = aiohttp.ClientTimeout(total=None, sock_read=_WATCH_SECONDS + _REQUEST_SECONDS)
        query = f"{path}&watch=1&timeoutSeconds={_WATCH_SECONDS}&resourceVersion={version}"
        pending = b""
        async with self.session.get(query, timeout=timeout) as answer:
            async for chunk in answer.content.iter_any():
                *lines, pending = (pending + chunk).split(b"\n")
                for line in lines:
                    yield json.loads(line)
