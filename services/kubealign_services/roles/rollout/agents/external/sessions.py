"""Records of the sessions that are offered to external agents. Pure: no clock, no wire."""

from collections import deque
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus

from kubealign.agents.contract import AgentClient, AgentRow
from kubealign_services.scoring.functions.results import RewardResult

#: Ended sessions that are remembered, to answer repeated and late requests.
REMEMBERED_SESSIONS = 4096

SILENCE_FIELD = "rollout.workflow.agent.external.sessionTimeoutSeconds"
LIMIT_FIELD = "rollout.workflow.agent.timeoutSeconds"


class SessionState(StrEnum):
    """State of a session."""

    WAITING = "waits for an agent"
    TAKEN = "runs"
    REWARDED = "ended with a reward"
    FAILED = "failed"
    EXPIRED = "expired"
    WITHDRAWN = "was withdrawn"


class SessionRefused(Exception):
    """A request about a session is refused, with an HTTP status: 404, 409 or 410."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class ExternalSession:
    """Session of one response. Times are in seconds of one clock.

    taken_at: Time at which an agent took the session. active_at: last time at which its agent called the
    policy or sent a heartbeat. calls: calls of the policy in progress. result: reward of the agent. reason:
    cause of a failure or an expiry.
    """

    id: str
    client: AgentClient
    row: AgentRow
    state: SessionState = SessionState.WAITING
    taken_at: float = 0.0
    active_at: float = 0.0
    calls: int = 0
    result: RewardResult | None = None
    reason: str = ""

    @property
    def is_open(self) -> bool:
        """True until the session has ended."""
        return self.state in (SessionState.WAITING, SessionState.TAKEN)


class ExternalSessions:
    """Gives out sessions in order, each to one agent, and records how they end.

    A session that has been taken is never given out again: its sequences may have turns of the first agent.

    Args:
        silence_seconds: Time after which a session expires whose agent is silent.
        limit_seconds: Time limit of a session from its beginning, the agent's calls included.
    """

    def __init__(self, silence_seconds: float, limit_seconds: float) -> None:
        self._silence, self._limit = silence_seconds, limit_seconds
        self._waiting: deque[ExternalSession] = deque()
        self._by_id: dict[str, ExternalSession] = {}
        # Open sessions by their API key, and ids of those that have ended, in order.
        self._by_key: dict[str, ExternalSession] = {}
        self._ended: deque[str] = deque()

    @property
    def waiting(self) -> int:
        """Number of sessions that no agent has taken."""
        return len(self._waiting)

    def offer(self, identity: str, client: AgentClient, row: AgentRow) -> ExternalSession:
        """Add a session to those that wait for an agent."""
        session = ExternalSession(identity, client, row)
        self._by_id[identity] = self._by_key[client.api_key] = session
        self._waiting.append(session)
        return session

    def take(self, now: float) -> ExternalSession | None:
        """Return the session that has waited longest, for an agent; None: none waits."""
        if not self._waiting:
            return None
        session = self._waiting.popleft()
        session.state, session.taken_at, session.active_at = SessionState.TAKEN, now, now
        return session

    def begin_call(self, api_key: str, now: float) -> ExternalSession | None:
        """Record that the agent with this key calls the policy; None: the key is of no open session."""
        session = self._by_key.get(api_key)
        if session is not None:
            session.calls += 1
            session.active_at = now
        return session

    def end_call(self, session: ExternalSession, now: float) -> None:
        """Record that a call of the policy has ended."""
        session.calls -= 1
        session.active_at = now

    def heartbeat(self, identity: str, now: float) -> None:
        """Record that the agent of a session works. Raises SessionRefused."""
        self._require_running(identity, now).active_at = now

    def reward(self, identity: str, result: RewardResult, now: float) -> ExternalSession:
        """End a session with a reward; the same reward may be posted again. Raises SessionRefused."""
        session = self._find(identity)
        if session.state is SessionState.REWARDED and session.result == result:
            return session
        self._require_running(identity, now)
        session.result = result
        self._end(session, SessionState.REWARDED)
        return session

    def fail(self, identity: str, reason: str, now: float) -> ExternalSession:
        """End a session without a reward; the call may be repeated. Raises SessionRefused."""
        session = self._find(identity)
        if session.state is SessionState.FAILED:
            return session
        self._require_running(identity, now)
        self._end(session, SessionState.FAILED, reason)
        return session

    def withdraw(self, session: ExternalSession) -> None:
        """End a session that the worker no longer needs, if it is open."""
        if session.is_open:
            self._end(session, SessionState.WITHDRAWN)

    def deadline(self, session: ExternalSession) -> float | None:
        """Return the time at which a session expires unless its agent is active before; None: it waits for
        an agent, or has ended.
        """
        if session.state is not SessionState.TAKEN:
            return None
        limit = session.taken_at + self._limit
        return limit if session.calls else min(limit, session.active_at + self._silence)

    def expire(self, session: ExternalSession, now: float) -> None:
        """End a session whose deadline has passed."""
        deadline = self.deadline(session)
        if deadline is None or now < deadline:
            return
        if now >= session.taken_at + self._limit:
            reason = f"did not end within {self._limit:g} s ({LIMIT_FIELD})"
        else:
            reason = (
                f"neither called the policy nor sent a heartbeat for {self._silence:g} s ({SILENCE_FIELD})"
            )
        self._end(session, SessionState.EXPIRED, reason)

    def _find(self, identity: str) -> ExternalSession:
        session = self._by_id.get(identity)
        if session is None:
            raise SessionRefused(
                HTTPStatus.NOT_FOUND,
                f"this rollout worker has no session {identity}: it was never given out here, the worker "
                "has been started again, or the session ended long ago",
            )
        return session

    def _require_running(self, identity: str, now: float) -> ExternalSession:
        """Return a session that an agent runs. Raises SessionRefused."""
        session = self._find(identity)
        self.expire(session, now)
        match session.state:
            case SessionState.TAKEN:
                return session
            case SessionState.EXPIRED:
                raise SessionRefused(
                    HTTPStatus.GONE, f"session {identity} has expired: its agent {session.reason}"
                )
            case SessionState.WITHDRAWN:
                raise SessionRefused(
                    HTTPStatus.GONE,
                    f"session {identity} was withdrawn: the rollout worker no longer needs the response, "
                    "since another one to the same prompt failed, its deadline passed, or it has too many "
                    "sequences",
                )
            case SessionState.FAILED:
                problem = f"has failed already: {session.reason}"
            case SessionState.REWARDED:
                problem = "has ended already, with a reward"
            case SessionState.WAITING:
                problem = "has not been given out: take it by POST /sessions"
        raise SessionRefused(HTTPStatus.CONFLICT, f"session {identity} {problem}")

    def _end(self, session: ExternalSession, state: SessionState, reason: str = "") -> None:
        if session.state is SessionState.WAITING:
            self._waiting.remove(session)
        session.state, session.reason = state, reason
        del self._by_key[session.client.api_key]
        self._ended.append(session.id)
        if len(self._ended) > REMEMBERED_SESSIONS:
            del self._by_id[self._ended.popleft()]
