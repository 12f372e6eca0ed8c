"""Client of a rollout worker's endpoint for external agents (docs/agent-sessions.openapi.yaml)."""

import asyncio
import json
import time
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import aiohttp

from kubealign.agents.contract import AgentClient, AgentRow
from kubealign.backoff import Backoff

#: Seconds that a request for a session waits in the worker.
_WAIT_SECONDS = 25.0
#: Time limit of a request in seconds, beyond the time that it waits in the worker.
_REQUEST_SECONDS = 20.0
_FIRST_DELAY_SECONDS, _LONGEST_DELAY_SECONDS = 0.2, 5.0

_ENDED = (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT, HTTPStatus.GONE)


class EndpointLost(ConnectionError):
    """An endpoint could not be reached for too long."""


class EndpointRefused(RuntimeError):
    """The endpoint refuses the token, or is none of a rollout worker."""


class SessionEnded(Exception):
    """The worker has ended the session, or does not know it."""


class RewardRefused(ValueError):
    """The worker accepts no such reward."""


@dataclass(frozen=True)
class TakenSession:
    """Session that this process has taken.

    heartbeat_seconds: interval in which the worker expects to hear of the agent, with a margin.
    """

    id: str
    client: AgentClient
    row: AgentRow
    heartbeat_seconds: float


class EndpointClient:
    """Takes sessions from one endpoint and ends them; requests that do not arrive are repeated.

    Args:
        url: Address of the endpoint, without /sessions.
        unreachable_seconds: Time after which an endpoint that cannot be reached is given up; None: never.
    """

    def __init__(
        self, http: aiohttp.ClientSession, url: str, token: str, unreachable_seconds: float | None
    ) -> None:
        self._http, self.url = http, url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"}
        self._unreachable_seconds = unreachable_seconds
        self._reached_at = time.monotonic()
        #: True once the endpoint has replied.
        self.was_reached = False

    async def take(self) -> TakenSession | None:
        """Return a session, as soon as there is one; None: none came in time.

        Raises EndpointLost, EndpointRefused.
        """
        status, text = await self._post("/sessions", {"wait_seconds": _WAIT_SECONDS}, _WAIT_SECONDS)
        if status == HTTPStatus.NO_CONTENT:
            return None
        if status != HTTPStatus.OK:
            raise EndpointRefused(f"{self.url}/sessions answers {status}: {_message(text)}")
        document = json.loads(text)
        # The address by which this process reaches the worker, if the worker knows another one.
        client = AgentClient(f"{self.url}/v1", document["api_key"], document["model"])
        row = AgentRow(document["prompt"], document["columns"], document["seed"])
        return TakenSession(document["id"], client, row, document["session_timeout_seconds"] / 3.0)

    async def reward(self, session: TakenSession, reward: Any) -> None:
        """End a session with a reward.

        Raises EndpointLost, EndpointRefused, SessionEnded, RewardRefused.
        """
        await self._end(session, "reward", reward)

    async def fail(self, session: TakenSession, reason: str) -> None:
        """End a session without a reward. Raises EndpointLost, EndpointRefused, SessionEnded."""
        await self._end(session, "fail", {"reason": reason})

    async def heartbeat(self, session: TakenSession) -> None:
        """Tell the worker that the agent works. Raises EndpointLost, EndpointRefused, SessionEnded."""
        await self._end(session, "heartbeat", None)

    async def _end(self, session: TakenSession, action: str, body: Any) -> None:
        status, text = await self._post(f"/sessions/{session.id}/{action}", body)
        if status == HTTPStatus.NO_CONTENT:
            return
        if status in _ENDED:
            raise SessionEnded(_message(text))
        if status == HTTPStatus.BAD_REQUEST:
            raise RewardRefused(_message(text))
        raise EndpointRefused(f"{self.url}/sessions answers {status}: {_message(text)}")

    async def _post(self, path: str, body: Any, wait_seconds: float = 0.0) -> tuple[int, str]:
        """Post a JSON value, until there is an answer, and return its status and text.

        Raises EndpointLost.
        """
        try:
            content = json.dumps(body, default=_plain_number)
        except (TypeError, ValueError) as error:
            raise RewardRefused(f"{body!r:.200} is no reward: {error}") from error
        backoff = Backoff(_FIRST_DELAY_SECONDS, _LONGEST_DELAY_SECONDS)
        timeout = aiohttp.ClientTimeout(total=wait_seconds + _REQUEST_SECONDS)
        while True:
            try:
                async with self._http.post(
                    self.url + path, data=content, headers=self._headers, timeout=timeout
                ) as response:
                    text = await response.text(errors="replace")
                if response.status < HTTPStatus.INTERNAL_SERVER_ERROR:
                    self._reached_at, self.was_reached = time.monotonic(), True
                    return response.status, text
                problem = f"answers {response.status}: {_message(text)}"
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                problem = str(error) or type(error).__name__
            limit = self._unreachable_seconds
            if limit is not None and time.monotonic() - self._reached_at > limit:
                raise EndpointLost(f"{self.url} has not been reached for {limit:g} s: {problem}")
            await asyncio.sleep(backoff.next_delay())


def _plain_number(value: Any) -> Any:
    """Return the number of an array or a tensor with one element. Raises TypeError for anything else."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} is no JSON value")


def _message(text: str) -> str:
    """Return the message of an error's body."""
    try:
        return str(json.loads(text)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return text[:500]
