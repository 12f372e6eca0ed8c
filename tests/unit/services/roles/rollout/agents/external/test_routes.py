"""Routes for external agents, called over HTTP, and their contract as its OpenAPI document has it."""

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest
import yaml
from jsonschema import Draft202012Validator

from kubealign_services.roles.rollout.agents.external.routes import MAX_REASON
from kubealign_services.roles.rollout.workflow.contract import WorkflowFailed
from kubealign_services.scoring.functions.results import RESERVED_METRICS
from support.agent_sessions import ScriptedPolicy
from support.chat_templates import FAMILIES
from support.external_agents import ExternalEndpoint, serve_external

pytestmark = pytest.mark.timeout(60)

CONTRACT = Path(__file__).parents[7] / "docs" / "agent-sessions.openapi.yaml"
TOKENIZER = FAMILIES["qwen25"].tokenizer()


def conforms(schema: str, value: Any) -> bool:
    """Return True if a value is of a schema of the document."""
    document = yaml.safe_load(CONTRACT.read_text())
    return Draft202012Validator(document | {"$ref": f"#/components/schemas/{schema}"}).is_valid(value)


async def take(endpoint: ExternalEndpoint) -> dict[str, Any]:
    """Take the next session."""
    status, session = await endpoint.post("", {"wait_seconds": 20})
    assert status == 200 and conforms("Session", session)
    return dict(session)


async def ask(session: dict[str, Any]) -> str:
    """Have the policy complete the prompt of a session."""
    async with openai.AsyncOpenAI(
        base_url=session["base_url"], api_key=session["api_key"], max_retries=0
    ) as client:
        reply = await client.completions.create(model=session["model"], prompt=session["prompt"])
    return reply.choices[0].text


async def wait_for_polls(endpoint: ExternalEndpoint, count: int) -> None:
    """Wait until this number of requests waits for a session."""
    async with asyncio.timeout(20):
        while endpoint.pool.polls != count:  # noqa: ASYNC110 - a request is no event of the test's
            await asyncio.sleep(0.01)


async def test_an_agent_takes_a_response_calls_the_policy_and_rewards_it() -> None:
    async with serve_external(TOKENIZER, sessionTimeoutSeconds=45, timeoutSeconds=90) as endpoint:
        # The request waits for the response.
        request = asyncio.create_task(take(endpoint))
        await wait_for_polls(endpoint, 1)
        episode = endpoint.begin("two", name="a")
        session = await request
        assert session["base_url"] == f"{endpoint.url}/v1"
        assert (session["prompt"], session["columns"]) == ("what is", {"name": "a"})
        assert (session["timeout_seconds"], session["session_timeout_seconds"]) == (90, 45)
        assert await ask(session) == "two"
        reward = {"reward": 0.5, "metrics": {"asked": 1}, "explanation": "fair"}
        assert await endpoint.post(f"/{session['id']}/reward", reward) == (204, None)
        transcript = (await episode).transcript
        assert transcript.text == "two"
        result = transcript.rewards["reward"]
        assert (result.total, result.metrics, result.explanation) == (0.5, {"asked": 1.0}, "fair")
        # Again, after the end of the episode.
        assert await endpoint.post(f"/{session['id']}/reward", reward) == (204, None)
        status, error = await endpoint.post(f"/{session['id']}/reward", 1.0)
        assert status == 409 and "has ended already" in error["error"]["message"]
        with pytest.raises(openai.AuthenticationError, match="is over"):
            await ask(session)


async def test_the_address_of_the_policy_is_that_which_the_agent_has_reached() -> None:
    """Agents may reach the worker by another name, or through a proxy."""
    async with serve_external(TOKENIZER) as endpoint:
        endpoint.begin("two")
        endpoint.http.headers["Host"] = "agents.example:8080"
        assert (await take(endpoint))["base_url"] == "http://agents.example:8080/v1"


async def test_each_response_is_given_out_once() -> None:
    async with serve_external(TOKENIZER) as endpoint:
        requests = [asyncio.create_task(take(endpoint)) for _ in range(3)]
        await wait_for_polls(endpoint, 3)
        episodes = [endpoint.begin("two", number=number) for number in range(3)]
        sessions = await asyncio.gather(*requests)
        assert sorted(session["columns"]["number"] for session in sessions) == [0, 1, 2]
        assert len({session["api_key"] for session in sessions}) == 3
        assert await endpoint.post("", {"wait_seconds": 0}) == (204, None)
        for session in sessions:
            await ask(session)
            await endpoint.post(f"/{session['id']}/reward", session["columns"]["number"])
        rewards = [(await episode).transcript.rewards["reward"].total for episode in episodes]
        assert rewards == [0.0, 1.0, 2.0]


async def test_an_agent_that_disconnects_takes_no_response() -> None:
    async with serve_external(TOKENIZER) as endpoint:
        gone = asyncio.create_task(take(endpoint))
        await wait_for_polls(endpoint, 1)
        gone.cancel()
        await wait_for_polls(endpoint, 0)
        endpoint.begin("two")
        assert (await take(endpoint))["prompt"] == "what is"


@pytest.mark.parametrize("token", ["", "other", "é", "the key"])
async def test_only_the_token_opens_the_sessions(token: str) -> None:
    """A session's API key does not, and the token is no API key."""
    async with serve_external(TOKENIZER) as endpoint:
        endpoint.begin("two")
        session = await take(endpoint)
        sent = session["api_key"] if token == "the key" else token
        for path in ("", f"/{session['id']}/reward", f"/{session['id']}/fail", f"/{session['id']}/heartbeat"):
            status, error = await endpoint.post(path, 1.0, token=sent)
            assert status == 401 and conforms("Error", error)
            assert "rollout.workflow.agent.external.tokenVariable" in error["error"]["message"]
        with pytest.raises(openai.AuthenticationError):
            await ask(session | {"api_key": "agents' token"})


@pytest.mark.parametrize("action", ["reward", "fail", "heartbeat"])
async def test_an_unknown_session_is_not_found(action: str) -> None:
    async with serve_external(TOKENIZER) as endpoint:
        body = {"reason": "x"} if action == "fail" else 1.0
        status, error = await endpoint.post(f"/abc-1/{action}", body)
        assert status == 404 and "has no session abc-1" in error["error"]["message"]
        assert conforms("Error", error)


async def test_a_silent_agent_loses_its_response() -> None:
    """The response fails, and the late reward is refused."""
    async with serve_external(TOKENIZER, sessionTimeoutSeconds=0.2) as endpoint:
        episode = endpoint.begin("two")
        session = await take(endpoint)
        with pytest.raises(WorkflowFailed, match=r"for 0\.2 s \(rollout\.workflow\.agent\.external\.session"):
            await episode
        status, error = await endpoint.post(f"/{session['id']}/reward", 1.0)
        assert status == 410 and "has expired: its agent neither called" in error["error"]["message"]


async def test_a_slow_policy_is_no_silence() -> None:
    """The session lives as long as a call of the policy takes, and no longer than its time limit."""

    class Slow(ScriptedPolicy):
        async def __call__(self, request: Any) -> Any:
            await asyncio.sleep(3.0)
            return await super().__call__(request)

    async with serve_external(TOKENIZER, sessionTimeoutSeconds=2) as endpoint:
        episode = endpoint.begin(policy=Slow(TOKENIZER, "two"))
        session = await take(endpoint)
        assert await ask(session) == "two"
        assert (await endpoint.post(f"/{session['id']}/reward", 1))[0] == 204
        assert (await episode).transcript.rewards["reward"].total == 1.0
    async with serve_external(TOKENIZER, timeoutSeconds=2) as endpoint:
        episode = endpoint.begin(policy=Slow(TOKENIZER, "two"))
        call = asyncio.create_task(ask(await take(endpoint)))
        with pytest.raises(WorkflowFailed, match=r"within 2 s \(rollout\.workflow\.agent\.timeoutSeconds"):
            await episode
        with pytest.raises(openai.AuthenticationError, match="is over"):
            await call


async def test_heartbeats_keep_a_session() -> None:
    async with serve_external(TOKENIZER, sessionTimeoutSeconds=2) as endpoint:
        episode = endpoint.begin("two")
        session = await take(endpoint)
        await ask(session)
        for _ in range(3):
            await asyncio.sleep(1.0)
            assert await endpoint.post(f"/{session['id']}/heartbeat") == (204, None)
        await endpoint.post(f"/{session['id']}/reward", 1)
        await episode


async def test_an_agent_gives_up() -> None:
    async with serve_external(TOKENIZER) as endpoint:
        episode = endpoint.begin("two")
        session = await take(endpoint)
        for _ in range(2):
            assert await endpoint.post(f"/{session['id']}/fail", {"reason": "no tool" * 1000}) == (204, None)
        with pytest.raises(WorkflowFailed, match="the external agent failed: no tool") as failure:
            await episode
        assert len(str(failure.value)) < MAX_REASON + 100
        assert (await endpoint.post(f"/{session['id']}/reward", 1))[0] == 409


async def test_a_reward_without_a_turn_of_the_policy_fails_the_response() -> None:
    async with serve_external(TOKENIZER) as endpoint:
        episode = endpoint.begin("two")
        session = await take(endpoint)
        await endpoint.post(f"/{session['id']}/reward", 1)
        with pytest.raises(WorkflowFailed, match="ended without a completion of the policy"):
            await episode


@pytest.mark.parametrize(
    ("reward", "accepted"),
    [
        (1, True),
        (0.5, True),
        (None, True),
        ({"reward": 1}, True),
        ({"reward": None, "metrics": None, "explanation": None}, True),
        ({"reward": 1, "metrics": {"a.b-c_1": 1}, "explanation": "x"}, True),
        ("1", False),
        ([1], False),
        ({}, False),
        ({"reward": "1"}, False),
        ({"reward": 1, "score": 1}, False),
        ({"reward": 1, "metrics": {next(iter(RESERVED_METRICS)): 1}}, False),
    ],
)
async def test_the_document_allows_the_rewards_that_the_route_accepts(reward: Any, accepted: bool) -> None:
    """A reward that is refused leaves the session open."""
    async with serve_external(TOKENIZER) as endpoint:
        endpoint.begin("two")
        session = await take(endpoint)
        status, error = await endpoint.post(f"/{session['id']}/reward", reward)
        assert (status == 204) == accepted == conforms("Reward", reward)
        if not accepted:
            assert status == 400 and error["error"]["message"].startswith("the body is no reward: ")
            assert await endpoint.post(f"/{session['id']}/heartbeat") == (204, None)


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("", [], "the body is []: it must be a JSON object with wait_seconds"),
        ("", {"wait_seconds": 61}, "wait_seconds: 61 is not a number from 0 to 60"),
        ("", {"wait_seconds": True}, "wait_seconds: true is not a number"),
        ("", {"wait": 1}, "wait is not supported, only wait_seconds"),
        ("/a/fail", {}, "reason: null is not a text"),
        ("/a/fail", {"reason": " "}, 'reason: " " is not a text'),
    ],
)
async def test_other_bodies_are_refused(path: str, body: Any, message: str) -> None:
    async with serve_external(TOKENIZER) as endpoint:
        status, error = await endpoint.post(path, body)
        assert status == 400 and conforms("Error", error)
        assert message in error["error"]["message"]
        assert not conforms("Failure" if path else "Take", body)
