"""HTTP application of the sandbox service: POST /v1/programs and GET /healthz."""

import asyncio
import hmac
import logging
import ssl
from dataclasses import dataclass
from http import HTTPStatus
from types import TracebackType
from typing import Self

from aiohttp import web
from aiohttp.typedefs import Handler

from kubealign_services.scoring.sandbox.errors import SandboxFailed
from kubealign_services.scoring.sandbox.programs import ProgramRunner
from kubealign_services.scoring.sandbox.runs import TestVerdict
from kubealign_services.scoring.sandbox_server.documents import (
    PROGRAMS_PATH,
    BadDocument,
    ProgramDocument,
    ProgramLimits,
    VerdictsDocument,
    parse_program,
)

HEALTH_PATH = "/healthz"
#: Most bytes of a request.
MAX_REQUEST_BYTES = 2**24
#: Seconds after which a client that was refused for a full queue may ask again.
_RETRY_SECONDS = 1
_SHUTDOWN_SECONDS = 1.0
_BEARER = "Bearer "

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ServiceSettings:
    """Settings of the service.

    Args:
        host: Address to listen on.
        port: Port; 0: a free one.
        programs: Most programs at once, those that wait for others to end included.
        maxima: Largest limits that a request may ask for.
        token: Bearer token that requests must have; None: they need none.
        tls: Serve HTTPS by it; None: HTTP.
    """

    host: str
    port: int
    programs: int
    maxima: ProgramLimits
    token: str | None = None
    tls: ssl.SSLContext | None = None


class SandboxService:
    """Serves the contract with the sandboxes of this machine. Use as an async context manager.

    A client that disconnects cancels the tests that have not started. At the end all sandboxes are ended, and
    requests in progress are answered with 503.
    """

    def __init__(self, runner: ProgramRunner, settings: ServiceSettings) -> None:
        self._runner = runner
        self._settings = settings
        self._programs = 0
        self._is_stopping = False
        application = web.Application(
            client_max_size=MAX_REQUEST_BYTES, middlewares=[_reply_with_errors, self._authorize]
        )
        application.add_routes([web.post(PROGRAMS_PATH, self._run), web.get(HEALTH_PATH, self._health)])
        self._http = web.AppRunner(
            application,
            access_log=None,
            handler_cancellation=True,
            shutdown_timeout=_SHUTDOWN_SECONDS,
        )

    async def __aenter__(self) -> Self:
        """Listen. Raises OSError where the address cannot be used."""
        settings = self._settings
        await self._http.setup()
        try:
            await web.TCPSite(self._http, settings.host, settings.port, ssl_context=settings.tls).start()
        except BaseException:
            await self._http.cleanup()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_stopping = True
        await asyncio.to_thread(self._runner.close)
        await self._http.cleanup()

    @property
    def address(self) -> str:
        """Address for clients."""
        host, port = self._http.addresses[0][:2]
        shown = f"[{host}]" if ":" in host else host
        return f"{'http' if self._settings.tls is None else 'https'}://{shown}:{port}"

    @web.middleware
    async def _authorize(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        token, header = self._settings.token, request.headers.get("Authorization", "")
        if token is not None and request.path != HEALTH_PATH:
            is_right = hmac.compare_digest(header.encode(), f"{_BEARER}{token}".encode())
            if not is_right:
                problem = "the token is not this service's" if header else "send the token as a bearer token"
                raise Refusal(HTTPStatus.UNAUTHORIZED, problem)
        return await handler(request)

    async def _health(self, request: web.Request) -> web.Response:
        self._refuse_when_stopping()
        return web.json_response({"status": "ok", "programs": self._programs})

    async def _run(self, request: web.Request) -> web.Response:
        self._refuse_when_stopping()
        document = _read_document(await request.read(), self._settings.maxima)
        if self._programs >= self._settings.programs:
            raise Refusal(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"{self._programs} programs are running or waiting, the most that this service admits",
                {"Retry-After": str(_RETRY_SECONDS)},
            )
        self._programs += 1
        try:
            verdicts, seconds = await self._verdicts(document)
        except SandboxFailed as error:
            self._refuse_when_stopping()
            log.error("a sandbox failed: %s", error)
            raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, str(error)) from error
        finally:
            self._programs -= 1
        return web.json_response(VerdictsDocument.of(verdicts, seconds).model_dump(by_alias=True))

    async def _verdicts(self, document: ProgramDocument) -> tuple[list[TestVerdict], float]:
        """Return the verdicts of a program's tests, and their seconds. Raises SandboxFailed."""
        limits = document.limits
        run = self._runner.start(document.tested_program, limits.per_test, limits.seconds_per_response)
        try:
            return await asyncio.gather(*map(asyncio.wrap_future, run.verdicts)), run.seconds
        finally:
            run.cancel()

    def _refuse_when_stopping(self) -> None:
        if self._is_stopping:
            raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "the service is stopping")


class Refusal(Exception):
    """A request is refused, with a status and a message for the client."""

    def __init__(self, status: HTTPStatus, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers or {}


def _read_document(body: bytes, maxima: ProgramLimits) -> ProgramDocument:
    """Return the program of a request. Raises Refusal."""
    try:
        document = parse_program(body)
    except BadDocument as error:
        raise Refusal(HTTPStatus.BAD_REQUEST, str(error)) from error
    field = maxima.exceeded_by(document.limits)
    if field is not None:
        largest = maxima.model_dump(by_alias=True)[field]
        value = document.limits.model_dump(by_alias=True)[field]
        # No sample is at fault, but the job: a client gives up.
        raise Refusal(
            HTTPStatus.FORBIDDEN,
            f"limits.{field}: {value:g}: must be at most {largest:g}, this service's maximum",
        )
    return document


@web.middleware
async def _reply_with_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Reply with errors in the contract's form: an object with the text `error`."""
    try:
        response: web.StreamResponse = await handler(request)
    except Refusal as error:
        return web.json_response({"error": str(error)}, status=error.status, headers=error.headers)
    except web.HTTPException as error:
        text = f"{request.method} {request.path}: {error.reason}"
        return web.json_response({"error": text}, status=error.status)
    return response
