"""Routes of the worker's endpoint for external agents: docs/agent-sessions.openapi.yaml."""

import json
import secrets
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from kubealign_services.roles.rollout.agents.errors import ApiError
from kubealign_services.roles.rollout.agents.external.pool import ExternalAgentPool
from kubealign_services.roles.rollout.agents.external.sessions import ExternalSession, SessionRefused
from kubealign_services.scoring.functions.results import InvalidResult, RewardResult, check_results
from kubealign_services.scoring.shortened_text import shorten

#: Longest time in seconds that a request may wait for a session, and the time where it names none.
MAX_WAIT_SECONDS, DEFAULT_WAIT_SECONDS = 60.0, 30.0
#: Most characters of the reason of a failure.
MAX_REASON = 2000

_BEARER = "Bearer "
_OPENAI_PREFIX = "/v1/"


class SessionRoutes:
    """Serves the sessions of a pool to agents that know the token.

    Args:
        token: Bearer token of all agents; the API key of a session opens none of these routes.
    """

    def __init__(self, pool: ExternalAgentPool, token: str) -> None:
        self._pool, self._token = pool, token.encode()

    @property
    def routes(self) -> list[web.RouteDef]:
        """Routes of the application."""
        return [
            web.post("/sessions", self._take),
            web.post("/sessions/{id}/reward", self._reward),
            web.post("/sessions/{id}/fail", self._fail),
            web.post("/sessions/{id}/heartbeat", self._heartbeat),
        ]

    @property
    def middleware(self) -> Middleware:
        """Middleware of the application that records calls of the policy as activity of their agents."""
        pool = self._pool

        @web.middleware
        async def record_call(request: web.Request, handler: Handler) -> web.StreamResponse:
            if not request.path.startswith(_OPENAI_PREFIX):
                return await handler(request)
            with pool.record_call(_bearer(request)):
                return await handler(request)

        return record_call

    async def _take(self, request: web.Request) -> web.Response:
        self._authenticate(request)
        wait_seconds = _read_wait(await request.read())
        session = await self._pool.take(wait_seconds)
        if session is None:
            return web.Response(status=204)
        return web.json_response(self._describe(session, request))

    async def _reward(self, request: web.Request) -> web.Response:
        self._authenticate(request)
        result = _read_reward(await request.read())
        try:
            self._pool.reward(request.match_info["id"], result)
        except SessionRefused as error:
            raise _to_api_error(error) from error
        return web.Response(status=204)

    async def _fail(self, request: web.Request) -> web.Response:
        self._authenticate(request)
        reason = _read_reason(await request.read())
        try:
            self._pool.fail(request.match_info["id"], reason)
        except SessionRefused as error:
            raise _to_api_error(error) from error
        return web.Response(status=204)

    async def _heartbeat(self, request: web.Request) -> web.Response:
        self._authenticate(request)
        try:
            self._pool.heartbeat(request.match_info["id"])
        except SessionRefused as error:
            raise _to_api_error(error) from error
        return web.Response(status=204)

    def _authenticate(self, request: web.Request) -> None:
        """Raise ApiError unless the request has the token."""
        if secrets.compare_digest(_bearer(request).encode(errors="replace"), self._token):
            return
        raise ApiError(
            401,
            "send the token of rollout.workflow.agent.external.tokenVariable as a bearer token; the API key "
            "of a session is valid below /v1 only",
            code="invalid_token",
        )

    def _describe(self, session: ExternalSession, request: web.Request) -> dict[str, Any]:
        return {
            "id": session.id,
            # The address that the agent has reached, which may be that of a proxy.
            "base_url": f"{request.scheme}://{request.host}/v1",
            "api_key": session.client.api_key,
            "model": session.client.model,
            "prompt": session.row.prompt,
            "columns": session.row.columns,
            "seed": session.row.seed,
            "timeout_seconds": self._pool.limit_seconds,
            "session_timeout_seconds": self._pool.silence_seconds,
        }


def _bearer(request: web.Request) -> str:
    header = request.headers.get("Authorization", "")
    return header.removeprefix(_BEARER) if header.startswith(_BEARER) else ""


def _to_api_error(error: SessionRefused) -> ApiError:
    return ApiError(error.status, str(error), code=f"session_{error.status.name.lower()}")


def _read_wait(body: bytes) -> float:
    """Return the seconds that a request for a session may wait. Raises ApiError."""
    document = _read_object(body or b"{}", ("wait_seconds",))
    wait = document.get("wait_seconds", DEFAULT_WAIT_SECONDS)
    if isinstance(wait, bool) or not isinstance(wait, int | float) or not 0 <= wait <= MAX_WAIT_SECONDS:
        raise ApiError(
            400,
            f"wait_seconds: {_show(wait)} is not a number from 0 to {MAX_WAIT_SECONDS:g}",
            "wait_seconds",
            "invalid_value",
        )
    return float(wait)


def _read_reward(body: bytes) -> RewardResult:
    """Return the reward of a body, in the form of reward functions. Raises ApiError."""
    try:
        (result,) = check_results([_read_json(body)], count=1)
    except InvalidResult as error:
        problem = str(error).replace(" for response 0", "").removeprefix("returned ")
        raise ApiError(400, f"the body is no reward: {problem}", code="invalid_value") from error
    return result


def _read_reason(body: bytes) -> str:
    """Return the reason of a failure. Raises ApiError."""
    reason = _read_object(body, ("reason",)).get("reason")
    if not isinstance(reason, str) or not reason.strip():
        raise ApiError(400, f"reason: {_show(reason)} is not a text", "reason", "invalid_value")
    return shorten(reason, MAX_REASON)


def _read_object(body: bytes, names: tuple[str, ...]) -> dict[str, Any]:
    """Return a JSON object that has no other names. Raises ApiError."""
    document = _read_json(body)
    if not isinstance(document, dict):
        raise ApiError(
            400, f"the body is {_show(document)}: it must be a JSON object with {', '.join(names)}"
        )
    for name in document:
        if name not in names:
            raise ApiError(
                400, f"{name} is not supported, only {', '.join(names)}", name, "unsupported_parameter"
            )
    return document


def _read_json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"the body is no JSON: {error}") from error


def _show(value: Any) -> str:
    return json.dumps(value)[:100]
