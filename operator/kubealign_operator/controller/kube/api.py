"""Calls of the Kubernetes API on plain JSON, over the official client's connections and credentials.

The client's typed methods build a model of every answer (for a pod, milliseconds and many times the size
of the JSON) and wait up to five minutes. Here each call has a deadline and returns the JSON that the
server sent.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

import aiohttp
from kubernetes.aio.client.api_client import ApiClient

from kubealign.kube.resources import ApiResource
from kubealign_operator.controller.kube.errors import ApiStatusError, ApiUnavailable, parse_retry_after
from kubealign_operator.controller.metrics import OperatorMetrics

Json = dict[str, Any]

MERGE_PATCH = "application/merge-patch+json"
METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"

_METHODS = {
    "get": "GET",
    "list": "GET",
    "watch": "GET",
    "create": "POST",
    "patch": "PATCH",
    "delete": "DELETE",
}
_WRITES = ("create", "patch", "delete")
PLAIN = "application/json"
_FIRST_ERROR_STATUS = 400


def no_guard() -> None:
    """Allow every write: the guard of a process that needs no lease."""


class Api:
    """A client of the Kubernetes API.

    `guard` is called before each write and raises NotLeader when this replica must not write any more.
    Every call raises ApiStatusError when the server refuses and ApiUnavailable when it does not answer in
    time.
    """

    def __init__(
        self,
        client: ApiClient,
        metrics: OperatorMetrics,
        seconds: float,
        guard: Callable[[], None] = no_guard,
    ) -> None:
        self._client = client
        self._metrics = metrics
        self._seconds = seconds
        self._guard = guard

    async def get(self, resource: ApiResource, path: str, accept: str = PLAIN) -> Json:
        return await self._call("get", resource, path, accept=accept)

    async def list(self, resource: ApiResource, path: str, query: Mapping[str, str | int]) -> Json:
        """Return one page of a list."""
        return await self._call("list", resource, path, query=query)

    async def create(
        self, resource: ApiResource, path: str, body: Json, field_manager: str, accept: str = PLAIN
    ) -> Json:
        query = {"fieldManager": field_manager}
        return await self._call("create", resource, path, body=body, query=query, accept=accept)

    async def merge_patch(self, resource: ApiResource, path: str, body: Json, field_manager: str) -> Json:
        query = {"fieldManager": field_manager}
        return await self._call("patch", resource, path, body=body, query=query, media=MERGE_PATCH)

    async def delete(self, resource: ApiResource, path: str, options: Json) -> Json:
        return await self._call("delete", resource, path, body=options)

    @asynccontextmanager
    async def watch(
        self, resource: ApiResource, path: str, query: Mapping[str, str | int], silence: float
    ) -> AsyncIterator[AsyncIterator[Json]]:
        """Open a watch and yield its events until the server ends it.

        Args:
            silence: Timeout in seconds without a byte, after which the connection counts as broken.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._seconds, sock_read=silence)
        async with self._request("watch", resource, path, query=query, timeout=timeout) as answer:
            yield _lines(answer)

    async def _call(self, verb: str, resource: ApiResource, path: str, **options: Any) -> Json:
        timeout = aiohttp.ClientTimeout(total=self._seconds)
        async with self._request(verb, resource, path, timeout=timeout, **options) as answer:
            document = json.loads(await answer.read())
            if not isinstance(document, dict):
                raise ValueError("it is not a JSON object")
            return document

    @asynccontextmanager
    async def _request(
        self,
        verb: str,
        resource: ApiResource,
        path: str,
        *,
        timeout: aiohttp.ClientTimeout,
        body: Json | None = None,
        query: Mapping[str, str | int] | None = None,
        media: str = PLAIN,
        accept: str = PLAIN,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        if verb in _WRITES:
            self._guard()
        call = f"{verb} {path}"
        started = time.monotonic()
        code = "none"
        try:
            answer = await self._send(_METHODS[verb], path, timeout, body, query, media, accept)
            async with answer:
                code = str(answer.status)
                if answer.status >= _FIRST_ERROR_STATUS:
                    raise _api_error(call, answer, await answer.read())
                yield answer
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            # ValueError: an answer that is truncated or not JSON, from a proxy between operator and server.
            code = "none"
            raise ApiUnavailable(f"{call}: no complete answer: {type(error).__name__}: {error}") from error
        finally:
            self._metrics.record_api_call(verb, resource.plural, code, time.monotonic() - started)

    async def _send(
        self,
        method: str,
        path: str,
        timeout: aiohttp.ClientTimeout,
        body: Json | None,
        query: Mapping[str, str | int] | None,
        media: str,
        accept: str,
    ) -> aiohttp.ClientResponse:
        headers: dict[str, str] = {"Accept": accept, "Content-Type": media, **self._client.default_headers}
        await self._client.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
        url = self._client.configuration.host + path + (f"?{urlencode(query)}" if query else "")
        sent = await self._client.rest_client.request(  # type: ignore[no-untyped-call]
            method, url, headers=headers, body=body, _request_timeout=timeout
        )
        response: aiohttp.ClientResponse = sent.response
        return response


async def _lines(answer: aiohttp.ClientResponse) -> AsyncIterator[Json]:
    async for line in answer.content:
        if line.strip():
            yield json.loads(line)
            # A burst of buffered events must not starve the other tasks.
            await asyncio.sleep(0)


def _api_error(call: str, answer: aiohttp.ClientResponse, body: bytes) -> ApiStatusError:
    try:
        document = json.loads(body)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        document = {"message": body[:300].decode(errors="replace")}
    reason = str(document.get("reason") or _status_phrase(answer.status))
    return ApiStatusError(
        call, answer.status, reason, str(document.get("message") or ""), parse_retry_after(answer.headers)
    )


def _status_phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"
