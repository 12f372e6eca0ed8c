"""Agents outside the rollout worker, with the interface of the pool of its own processes."""

import asyncio
import itertools
import logging
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from kubealign.agents.contract import AgentClient, AgentRow
from kubealign.spec.workflows.agents import AgentSpec
from kubealign_services.environments.contract import EnvironmentFailed
from kubealign_services.roles.rollout.agents.external.sessions import (
    ExternalSession,
    ExternalSessions,
    SessionState,
)
from kubealign_services.scoring.functions.results import RewardResult

log = logging.getLogger(__name__)

#: Time after which the log says that no agent takes a session.
_UNTAKEN_SECONDS = 60.0


class ExternalAgentPool:
    """Offers each response to external agents, and waits for the reward of the agent that takes it."""

    def __init__(self, spec: AgentSpec) -> None:
        assert spec.external is not None
        self.silence_seconds, self.limit_seconds = spec.external.session_timeout_seconds, spec.timeout_seconds
        self._sessions = ExternalSessions(self.silence_seconds, self.limit_seconds)
        self._identities = itertools.count(1)
        # Unique to this process: an agent may hold a session of the worker before a restart.
        self._prefix = secrets.token_hex(6)
        self._offered = asyncio.Event()
        self._changes: dict[str, asyncio.Event] = {}
        #: Number of requests that wait for a session.
        self.polls = 0
        self._has_polled = False
        self._warned_at = -_UNTAKEN_SECONDS

    @property
    def label(self) -> str:
        """Description of the agents for errors."""
        return "the external agent" + ("" if self._has_polled else " (none has asked for a response yet)")

    async def solve(self, client: AgentClient, row: AgentRow) -> RewardResult:
        """Offer a session until an agent has taken it, and return the reward that the agent posts.

        Raises:
            EnvironmentFailed: The agent failed, was silent for sessionTimeoutSeconds, or exceeded
                timeoutSeconds.
        """
        session = self._sessions.offer(f"{self._prefix}-{next(self._identities)}", client, row)
        changed = self._changes[session.id] = asyncio.Event()
        self._offered.set()
        try:
            while session.is_open:
                await self._wait(session, changed)
                self._sessions.expire(session, _now())
        finally:
            del self._changes[session.id]
            self._sessions.withdraw(session)
        if session.state is SessionState.REWARDED:
            assert session.result is not None
            return session.result
        verb = "failed: " if session.state is SessionState.FAILED else ""
        raise EnvironmentFailed(f"{self.label} {verb}{session.reason}")

    async def take(self, wait_seconds: float) -> ExternalSession | None:
        """Return the session that has waited longest, once there is one; None: none came in time."""
        self._has_polled = True
        deadline = _now() + wait_seconds
        self.polls += 1
        try:
            while (session := self._sessions.take(_now())) is None:
                self._offered.clear()
                try:
                    async with asyncio.timeout_at(deadline):
                        await self._offered.wait()
                except TimeoutError:
                    return None
        finally:
            self.polls -= 1
        self._changes[session.id].set()
        return session

    def heartbeat(self, identity: str) -> None:
        """Record that the agent of a session works. Raises SessionRefused."""
        self._sessions.heartbeat(identity, _now())

    def reward(self, identity: str, result: RewardResult) -> None:
        """End a session with a reward. Raises SessionRefused."""
        self._notify(self._sessions.reward(identity, result, _now()))

    def fail(self, identity: str, reason: str) -> None:
        """End a session without a reward. Raises SessionRefused."""
        self._notify(self._sessions.fail(identity, reason, _now()))

    @contextmanager
    def record_call(self, api_key: str) -> Iterator[None]:
        """Record a call of the policy with this key as activity of its agent, until the block ends."""
        session = self._sessions.begin_call(api_key, _now())
        try:
            yield
        finally:
            if session is not None:
                self._sessions.end_call(session, _now())
                # Its deadline counts again.
                self._notify(session)

    async def _wait(self, session: ExternalSession, changed: asyncio.Event) -> None:
        """Wait until the session changes or its deadline passes."""
        changed.clear()
        deadline = self._sessions.deadline(session)
        is_waiting = session.state is SessionState.WAITING
        try:
            async with asyncio.timeout_at(_now() + _UNTAKEN_SECONDS if is_waiting else deadline):
                await changed.wait()
        except TimeoutError:
            if is_waiting:
                self._warn_of_untaken()

    def _warn_of_untaken(self) -> None:
        """Write that sessions wait for agents to the log, once for all of them."""
        if _now() < self._warned_at + _UNTAKEN_SECONDS:
            return
        self._warned_at = _now()
        log.warning(
            "no external agent has taken a response for %g s: %d responses wait, and %d agents ask for one "
            "(POST /sessions)",
            _UNTAKEN_SECONDS,
            self._sessions.waiting,
            self.polls,
        )

    def _notify(self, session: ExternalSession) -> None:
        """Wake the task that waits for a session, if one does."""
        changed = self._changes.get(session.id)
        if changed is not None:
            changed.set()


def _now() -> float:
    """Return the time of the event loop in seconds, which its timeouts use."""
    return asyncio.get_running_loop().time()
