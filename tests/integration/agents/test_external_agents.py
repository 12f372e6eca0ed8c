"""The client that runs agents outside the rollout workers, against a real endpoint."""

import asyncio
import math
from contextlib import asynccontextmanager
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI

from kubealign.agents import AgentClient, AgentRow
from kubealign.agents.external import EndpointLost, EndpointRefused, serve_agent_async
from kubealign_services.roles.rollout.workflow.contract import WorkflowFailed
from support.chat_templates import FAMILIES
from support.external_agents import TOKEN, ExternalEndpoint, serve_external
from support.free_address import free_port

pytestmark = pytest.mark.timeout(120)

TOKENIZER = FAMILIES["qwen25"].tokenizer()


async def asks(client: AgentClient, row: AgentRow) -> dict[str, Any]:
    async with AsyncOpenAI(base_url=client.base_url, api_key=client.api_key, max_retries=0) as policy:
        reply = await policy.completions.create(model=client.model, prompt=row.prompt)
    return {"reward": len(reply.choices[0].text), "explanation": row.columns["name"]}


def asks_plainly(client: AgentClient, row: AgentRow) -> float:
    policy = OpenAI(base_url=client.base_url, api_key=client.api_key, max_retries=0)
    return len(policy.completions.create(model=client.model, prompt=row.prompt).choices[0].text)


def raises(client: AgentClient, row: AgentRow) -> float:
    raise KeyError("no such tool")


def exits(client: AgentClient, row: AgentRow) -> float:
    raise SystemExit(3)


async def is_undefined(client: AgentClient, row: AgentRow) -> float:
    return math.nan


async def returns_an_object(client: AgentClient, row: AgentRow) -> Any:
    return object()


@asynccontextmanager
async def serving(endpoint: ExternalEndpoint, function: Any, **options: Any):
    """Run an agent on the sessions of the endpoint until the block ends."""
    task = asyncio.create_task(serve_agent_async(endpoint.url, TOKEN, function, **options))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("function", [asks, asks_plainly])
async def test_an_agent_gives_its_reward(function: Any) -> None:
    async with serve_external(TOKENIZER) as endpoint, serving(endpoint, function, concurrency=2):
        episodes = [endpoint.begin("two", name="first"), endpoint.begin("one", name="second")]
        for episode, text in zip(episodes, ("two", "one"), strict=True):
            transcript = (await episode).transcript
            assert (transcript.text, transcript.rewards["reward"].total) == (text, 3.0)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (raises, "the external agent failed: KeyError: 'no such tool'"),
        (exits, r"the agent exited: SystemExit\(3\)"),
        (is_undefined, "the body is no reward: nan; a reward is a finite number"),
        (returns_an_object, "is no reward: object is no JSON value"),
    ],
)
async def test_an_agent_fails_its_response_alone(function: Any, message: str) -> None:
    async with serve_external(TOKENIZER) as endpoint, serving(endpoint, function, concurrency=1) as task:
        for _ in range(2):
            with pytest.raises(WorkflowFailed, match=message):
                await endpoint.begin("two")
        assert not task.done()


async def test_an_agent_that_works_without_the_policy_sends_heartbeats() -> None:
    async def pauses(client: AgentClient, row: AgentRow) -> dict[str, Any]:
        await asyncio.sleep(6.0)
        return await asks(client, row)

    async with serve_external(TOKENIZER, sessionTimeoutSeconds=3) as endpoint, serving(endpoint, pauses):
        transcript = (await endpoint.begin("two", name="a")).transcript
    assert transcript.rewards["reward"].explanation == "a"


async def test_an_agent_ends_with_its_session() -> None:
    """The worker withdraws the response; the agent is cancelled, and the next one begins."""
    cancelled = asyncio.Event()

    async def hangs_at_first(client: AgentClient, row: AgentRow) -> Any:
        if row.columns["name"] != "hang":
            return await asks(client, row)
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    options = {"sessionTimeoutSeconds": 3, "timeoutSeconds": 2}
    async with (
        serve_external(TOKENIZER, **options) as endpoint,
        serving(endpoint, hangs_at_first, concurrency=1),
    ):
        with pytest.raises(WorkflowFailed, match=r"within 2 s \(rollout\.workflow\.agent\.timeout"):
            await endpoint.begin("two", name="hang")
        assert (await endpoint.begin("two", name="b")).transcript.text == "two"
    assert cancelled.is_set()


async def test_a_program_that_stops_gives_its_sessions_back_as_failed() -> None:
    begun = asyncio.Event()

    async def hangs(client: AgentClient, row: AgentRow) -> None:
        begun.set()
        await asyncio.Event().wait()

    async with serve_external(TOKENIZER) as endpoint:
        async with serving(endpoint, hangs):
            episode = endpoint.begin("two")
            async with asyncio.timeout(30):
                await begun.wait()
        with pytest.raises(WorkflowFailed, match="the process that ran the agent was stopped"):
            await episode


async def test_another_token_is_refused() -> None:
    async with serve_external(TOKENIZER) as endpoint:
        with pytest.raises(EndpointRefused, match="answers 401: send the token of rollout"):
            await serve_agent_async(endpoint.url, "another", asks)


async def test_an_endpoint_that_is_gone_ends_the_program() -> None:
    """One that never answered is an error."""
    async with serve_external(TOKENIZER) as endpoint:
        served = asyncio.create_task(serve_agent_async(endpoint.url, TOKEN, asks, unreachable_seconds=1.0))
        await endpoint.begin("two", name="a")
    async with asyncio.timeout(60):
        await served
    with pytest.raises(EndpointLost, match=r"has not been reached for 0\.5 s"):
        await serve_agent_async(f"http://127.0.0.1:{free_port()}", TOKEN, asks, unreachable_seconds=0.5)
