"""Requests to a reward server: credentials, repetition, and its errors as those of a reward."""

import asyncio
import json
import logging
import math
import os
import ssl
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

import aiohttp

from kubealign.spec.sections.reward_servers import RewardServer
from kubealign_services.runtime.http_errors import read_error_message
from kubealign_services.runtime.process.failures import PermanentFailure
from kubealign_services.scoring.functions.errors import RewardError, RewardHung, RewardRaised
from kubealign_services.scoring.servers.circuit_breaker import CircuitBreaker, CircuitOpen

#: Seconds before the first repetition; they double up to the last. A server's own Retry-After, of at most
#: this many seconds, takes precedence.
FIRST_DELAY, LAST_DELAY = 0.5, 30.0
MAX_RETRY_AFTER = 120.0
_CONNECT_SECONDS = 10.0
_MAX_ANSWER_BYTES = 2**24
_REPEATED = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS})
_REFUSED = frozenset(
    {
        HTTPStatus.UNAUTHORIZED,
        HTTPStatus.FORBIDDEN,
        HTTPStatus.NOT_FOUND,
        HTTPStatus.METHOD_NOT_ALLOWED,
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    }
)

log = logging.getLogger(__name__)

T = TypeVar("T")


class RewardServerRefused(RewardError):
    """The server refuses every request: a wrong address, wrong credentials, or limits above its own."""


class UnusableAnswer(Exception):
    """An answer that is no answer to the request. The message says what is wrong with it."""


class _Failure(Exception):
    """A failed attempt that may be repeated. pause: seconds that the server asks to wait."""

    def __init__(self, error: RewardError, pause: float | None = None, *, of_server: bool = True) -> None:
        super().__init__(str(error))
        self.error = error
        self.pause = pause
        self.of_server = of_server


class Endpoint:
    """One address of a reward server. An async context manager; used on one event loop.

    Args:
        name: Description for errors, such as `reward helpful: judge`.
        timeout_seconds: Time of one request.
        connections: Most requests at once.
    """

    def __init__(
        self,
        name: str,
        spec: RewardServer,
        url: str,
        timeout_seconds: float,
        connections: int,
        variables: Mapping[str, str] = os.environ,
    ) -> None:
        """Raises PermanentFailure where a credential is missing."""
        self._name = name
        self._url = url
        self._retries = spec.retries
        self._timeout = timeout_seconds
        self._connections = connections
        self._headers = _headers(name, spec, variables)
        self._tls = None if spec.tls_folder is None else make_tls_context(name, Path(spec.tls_folder))
        self._breaker = CircuitBreaker()
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> "Endpoint":
        connector = aiohttp.TCPConnector(
            limit=self._connections, ssl=True if self._tls is None else self._tls
        )
        timeout = aiohttp.ClientTimeout(total=self._timeout, sock_connect=_CONNECT_SECONDS)
        self._session = aiohttp.ClientSession(connector=connector, headers=self._headers, timeout=timeout)
        return self

    async def __aexit__(self, *exc: object) -> None:
        assert self._session is not None
        await self._session.close()

    async def post(self, body: Mapping[str, Any], read: Callable[[Any], T]) -> T:
        """Send JSON and return what `read` makes of the answer's JSON.

        A request that fails is repeated, with growing pauses, as often as the spec says.

        Args:
            read: Raises UnusableAnswer for an answer to be requested again.

        Raises:
            RewardHung: No answer came in time.
            RewardRaised: The server failed, had no capacity, or gave no usable answer.
            RewardServerRefused: The server refuses the address or the credentials.
        """
        delay = FIRST_DELAY
        for attempt in range(self._retries + 1):
            try:
                return await self._guarded_attempt(body, read)
            except _Failure as failure:
                if attempt == self._retries:
                    raise failure.error from failure
                pause = delay if failure.pause is None else min(failure.pause, MAX_RETRY_AFTER)
                log.info("%s: %s; the request is repeated in %.1f s", self._name, failure.error, pause)
                await asyncio.sleep(pause)
                delay = min(2 * delay, LAST_DELAY)
        raise AssertionError("the last attempt returns or raises")

    async def _guarded_attempt(self, body: Mapping[str, Any], read: Callable[[Any], T]) -> T:
        try:
            await self._breaker.enter(self._timeout)
        except CircuitOpen as error:
            raise RewardHung(f"{self._name}: {self._url} does not answer: {error}") from error
        succeeded: bool | None = None
        try:
            answer = await self._attempt(body, read)
            succeeded = True
            return answer
        except _Failure as failure:
            succeeded = not failure.of_server
            raise
        except RewardError:
            # The server lives, and refuses this request.
            succeeded = True
            raise
        finally:
            await self._breaker.leave(succeeded=succeeded)

    async def _attempt(self, body: Mapping[str, Any], read: Callable[[Any], T]) -> T:
        assert self._session is not None
        where = f"{self._name}: {self._url}"
        try:
            async with self._session.post(self._url, json=body, allow_redirects=False) as response:
                content = await _read_limited(response, where)
        except TimeoutError as error:
            raise _Failure(RewardHung(f"{where} did not answer within {self._timeout:g} s")) from error
        except aiohttp.ClientError as error:
            raise _Failure(RewardRaised(f"{where}: {type(error).__name__}: {error}")) from error
        status = response.status
        if status in _REPEATED or status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            refusal = RewardRaised(f"{where} answers {status}: {read_error_message(content)}")
            is_busy = status == HTTPStatus.TOO_MANY_REQUESTS
            pause = read_retry_after(response.headers.get("Retry-After", ""), datetime.now(UTC))
            raise _Failure(refusal, pause, of_server=not is_busy)
        if status in _REFUSED or HTTPStatus.MULTIPLE_CHOICES <= status < HTTPStatus.BAD_REQUEST:
            raise RewardServerRefused(f"{where} answers {status}: {read_error_message(content)}")
        if status != HTTPStatus.OK:
            # The sample may be the cause, such as one that is too long.
            raise RewardRaised(f"{where} answers {status}: {read_error_message(content)}")
        try:
            return read(json.loads(content))
        except (ValueError, RecursionError) as error:
            raise _Failure(RewardRaised(f"{where} answers no JSON: {read_error_message(content)}")) from error
        except UnusableAnswer as error:
            raise _Failure(RewardRaised(f"{where}: {error}"), of_server=False) from error


async def _read_limited(response: aiohttp.ClientResponse, where: str) -> bytes:
    """Return the body of an answer."""
    chunks, size = [], 0
    async for chunk in response.content.iter_any():
        size += len(chunk)
        if size > _MAX_ANSWER_BYTES:
            raise _Failure(RewardRaised(f"{where} answers more than {_MAX_ANSWER_BYTES} bytes"))
        chunks.append(chunk)
    return b"".join(chunks)


def _headers(name: str, spec: RewardServer, variables: Mapping[str, str]) -> dict[str, str]:
    if spec.token_variable is None:
        return {}
    token = variables.get(spec.token_variable)
    if not token:
        raise PermanentFailure(
            f"{name}: the environment variable {spec.token_variable} (tokenVariable) is not set: set it "
            "before the job starts, or in a cluster in the reward's podTemplate, from a Secret"
        )
    return {"Authorization": f"Bearer {token}"}


def make_tls_context(name: str, folder: Path) -> ssl.SSLContext:
    """Return a TLS context with the authority and the client certificate of a folder.

    Raises PermanentFailure where the folder has neither, or they cannot be read.
    """
    authority, certificate, key = (folder / each for each in ("ca.crt", "tls.crt", "tls.key"))
    if not authority.is_file() and not certificate.is_file():
        raise PermanentFailure(f"{name}: {folder} (tlsFolder) has neither ca.crt nor tls.crt")
    try:
        context = ssl.create_default_context(cafile=authority if authority.is_file() else None)
        if certificate.is_file():
            context.load_cert_chain(certificate, key)
    except OSError as error:
        raise PermanentFailure(f"{name}: the certificates of {folder} (tlsFolder): {error}") from error
    return context


def read_retry_after(text: str, now: datetime) -> float | None:
    """Return the seconds of a header Retry-After: a number, or the time to a date; None for other texts."""
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = (parsedate_to_datetime(text) - now).total_seconds()
        except (ValueError, TypeError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
