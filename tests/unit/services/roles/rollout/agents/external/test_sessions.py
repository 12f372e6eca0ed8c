"""Records of the sessions of external agents."""

from http import HTTPStatus

import pytest

from kubealign.agents.contract import AgentClient, AgentRow
from kubealign_services.roles.rollout.agents.external.sessions import (
    REMEMBERED_SESSIONS,
    ExternalSession,
    ExternalSessions,
    SessionRefused,
    SessionState,
)
from kubealign_services.scoring.functions.results import RewardResult

SILENCE, LIMIT = 10.0, 100.0


def offer(sessions: ExternalSessions, identity: str) -> ExternalSession:
    return sessions.offer(
        identity, AgentClient("http://x/v1", f"key-{identity}", "policy"), AgentRow("p", {}, 1)
    )


def taken(now: float = 0.0) -> tuple[ExternalSessions, ExternalSession]:
    """Return sessions of which one is taken."""
    sessions = ExternalSessions(SILENCE, LIMIT)
    offer(sessions, "a")
    session = sessions.take(now)
    assert session is not None
    return sessions, session


def test_sessions_are_given_out_in_order_and_once() -> None:
    sessions = ExternalSessions(SILENCE, LIMIT)
    first, second = offer(sessions, "a"), offer(sessions, "b")
    assert sessions.waiting == 2
    assert [sessions.take(0.0), sessions.take(0.0), sessions.take(0.0)] == [first, second, None]
    assert first.state is second.state is SessionState.TAKEN


def test_a_withdrawn_session_is_not_given_out() -> None:
    sessions = ExternalSessions(SILENCE, LIMIT)
    first, second = offer(sessions, "a"), offer(sessions, "b")
    sessions.withdraw(first)
    assert sessions.take(0.0) is second
    with pytest.raises(SessionRefused, match="no longer needs the response"):
        sessions.reward("a", RewardResult(1.0), 0.0)


@pytest.mark.parametrize("activity", ["call", "heartbeat"])
def test_a_silent_session_expires(activity: str) -> None:
    """Calls of the policy and heartbeats put the deadline off."""
    sessions, session = taken()
    if activity == "call":
        call = sessions.begin_call("key-a", 3.0)
        assert call is session
        # A call in progress is no silence.
        assert sessions.deadline(session) == LIMIT
        sessions.end_call(session, 7.0)
    else:
        sessions.heartbeat("a", 7.0)
    assert sessions.deadline(session) == 7.0 + SILENCE
    sessions.expire(session, 16.9)
    assert session.is_open
    sessions.expire(session, 17.0)
    assert session.state is SessionState.EXPIRED
    assert "for 10 s (rollout.workflow.agent.external.sessionTimeoutSeconds)" in session.reason
    assert sessions.begin_call("key-a", 18.0) is None


def test_a_session_has_a_time_limit_however_active_its_agent_is() -> None:
    sessions, session = taken()
    sessions.begin_call("key-a", 99.0)
    sessions.expire(session, LIMIT)
    assert session.reason == "did not end within 100 s (rollout.workflow.agent.timeoutSeconds)"


def test_a_waiting_session_has_no_deadline() -> None:
    sessions = ExternalSessions(SILENCE, LIMIT)
    session = offer(sessions, "a")
    assert sessions.deadline(session) is None
    sessions.expire(session, 1e9)
    assert session.is_open


def test_the_same_reward_may_be_posted_again() -> None:
    sessions, session = taken()
    result = RewardResult(1.0, {"won": 1.0}, "fine")
    for now in (1.0, 1e9):
        assert sessions.reward("a", result, now) is session
    assert session.result == result
    with pytest.raises(SessionRefused, match="has ended already, with a reward") as refusal:
        sessions.reward("a", RewardResult(0.5), 2.0)
    assert refusal.value.status is HTTPStatus.CONFLICT
    assert session.result == result


def test_a_failure_may_be_repeated() -> None:
    sessions, session = taken()
    for reason in ("no tool", "another"):
        sessions.fail("a", reason, 1.0)
    assert (session.state, session.reason) == (SessionState.FAILED, "no tool")
    with pytest.raises(SessionRefused, match="has failed already: no tool"):
        sessions.reward("a", RewardResult(1.0), 1.0)


@pytest.mark.parametrize(
    ("identity", "now", "status", "message"),
    [
        ("z", 1.0, HTTPStatus.NOT_FOUND, "has no session z"),
        ("b", 1.0, HTTPStatus.CONFLICT, "has not been given out"),
        ("a", SILENCE, HTTPStatus.GONE, "has expired: its agent neither called"),
        ("a", LIMIT, HTTPStatus.GONE, "has expired: its agent did not end within 100 s"),
    ],
)
def test_requests_about_other_sessions_are_refused(
    identity: str, now: float, status: HTTPStatus, message: str
) -> None:
    """The session has expired as soon as its deadline has passed, whoever notices it."""
    for end in (
        lambda sessions: sessions.reward(identity, RewardResult(1.0), now),
        lambda sessions: sessions.fail(identity, "x", now),
        lambda sessions: sessions.heartbeat(identity, now),
    ):
        sessions, _ = taken()
        offer(sessions, "b")
        with pytest.raises(SessionRefused, match=message) as refusal:
            end(sessions)
        assert refusal.value.status is status


def test_the_newest_ended_sessions_are_remembered() -> None:
    sessions = ExternalSessions(SILENCE, LIMIT)
    stays = offer(sessions, "open")
    for number in range(REMEMBERED_SESSIONS + 1):
        sessions.withdraw(offer(sessions, str(number)))
    with pytest.raises(SessionRefused, match="has no session 0"):
        sessions.heartbeat("0", 0.0)
    with pytest.raises(SessionRefused, match="no longer needs the response"):
        sessions.heartbeat("1", 0.0)
    assert sessions.take(0.0) is stays
