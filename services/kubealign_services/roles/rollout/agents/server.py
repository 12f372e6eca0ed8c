"""Server of the OpenAI API in a rollout worker."""

import secrets
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from kubealign.agents.contract import AgentClient
from kubealign_services.roles.rollout.agents.errors import ApiError
from kubealign_services.roles.rollout.agents.external.routes import SessionRoutes
from kubealign_services.roles.rollout.agents.replies import (
    MODEL,
    chat_chunks,
    chat_reply,
    model_list,
    text_chunks,
    text_reply,
)
from kubealign_services.roles.rollout.agents.requests import ChatRequest, TextRequest, parse_request
from kubealign_services.roles.rollout.agents.session import SESSION_IS_OVER, AgentSession
from kubealign_services.runtime.rpc.server import PortInUse

#: Most bytes of a request: a long conversation with its tools.
_REQUEST_BYTES = 2**26
_SHUTDOWN_SECONDS = 1.0
_BEARER = "Bearer "


class AgentServer:
    """Serves /v1/chat/completions, /v1/completions and /v1/models; the API key names the session.

    A client that disconnects cancels its request. Use as an async context manager.

    Args:
        external: Additional routes for agents outside the worker; None: none.
        host: Address to listen at. port: Port; 0: a free one.
    """

    def __init__(self, external: SessionRoutes | None = None, host: str = "127.0.0.1", port: int = 0) -> None:
        self._host, self._port = host, port
        self._sessions: dict[str, AgentSession] = {}
        middlewares: list[Middleware] = [_reply_with_errors]
        if external is not None:
            middlewares.append(external.middleware)
        application = web.Application(client_max_size=_REQUEST_BYTES, middlewares=middlewares)
        application.add_routes(
            [
                web.post("/v1/chat/completions", self._chat),
                web.post("/v1/completions", self._complete),
                web.get("/v1/models", self._models),
                web.get("/v1/models/{model}", self._model),
                *(external.routes if external is not None else ()),
            ]
        )
        self._runner = web.AppRunner(
            application,
            access_log=None,
            handler_cancellation=True,
            shutdown_timeout=_SHUTDOWN_SECONDS,
        )

    async def __aenter__(self) -> Self:
        """Listen. Raises PortInUse."""
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, self._host, self._port).start()
        except OSError as error:
            await self._runner.cleanup()
            raise PortInUse(
                f"the endpoint of agents cannot listen at {self._host}:{self._port}: {error.strerror}"
            ) from error
        except BaseException:
            await self._runner.cleanup()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()

    @property
    def port(self) -> int:
        """Port that the server listens at."""
        return int(self._runner.addresses[0][1])

    @property
    def base_url(self) -> str:
        """Address for clients on this machine."""
        return f"http://127.0.0.1:{self.port}/v1"

    @asynccontextmanager
    async def open(self, session: AgentSession) -> AsyncIterator[AgentClient]:
        """Serve a session until the block ends, and yield the access to it."""
        key = secrets.token_urlsafe(32)
        self._sessions[key] = session
        try:
            yield AgentClient(self.base_url, key, MODEL)
        finally:
            del self._sessions[key]
            await session.close()

    def _session(self, request: web.Request) -> AgentSession:
        header = request.headers.get("Authorization", "")
        session = self._sessions.get(header.removeprefix(_BEARER)) if header.startswith(_BEARER) else None
        if session is None:
            problem = SESSION_IS_OVER if header else "send the API key of the session as a bearer token"
            raise ApiError(401, problem, code="invalid_api_key")
        return session

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        session = self._session(request)
        body = parse_request(ChatRequest, await request.read())
        _check_model(body.model)
        answer = await session.chat(body)
        if body.stream:
            return await _send_events(request, chat_chunks(body, answer))
        return web.json_response(chat_reply(body, answer))

    async def _complete(self, request: web.Request) -> web.StreamResponse:
        session = self._session(request)
        body = parse_request(TextRequest, await request.read())
        _check_model(body.model)
        answer = await session.complete(body)
        if body.stream:
            return await _send_events(request, text_chunks(body, answer))
        return web.json_response(text_reply(body, answer))

    async def _models(self, request: web.Request) -> web.Response:
        self._session(request)
        return web.json_response(model_list())

    async def _model(self, request: web.Request) -> web.Response:
        self._session(request)
        _check_model(request.match_info["model"])
        return web.json_response(model_list()["data"][0])


@web.middleware
async def _reply_with_errors(
    request: web.Request,
    handler: Handler,
) -> web.StreamResponse:
    """Reply with errors in the API's form."""
    try:
        response: web.StreamResponse = await handler(request)
    except ApiError as error:
        return web.json_response(error.to_json(), status=error.status)
    except web.HTTPException as error:
        refusal = ApiError(error.status, f"{request.method} {request.path}: {error.reason}")
        return web.json_response(refusal.to_json(), status=error.status)
    return response


def _check_model(name: str) -> None:
    if name != MODEL:
        raise ApiError(404, f"model: there is no {name!r}, only {MODEL!r}", "model", "model_not_found")


async def _send_events(request: web.Request, events: Iterable[bytes]) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})
    await response.prepare(request)
    for event in events:
        await response.write(event)
    await response.write_eof()
    return response
