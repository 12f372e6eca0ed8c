"""Agents in processes of their own, which call the policy by the client library."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from kubealign.spec.workflows.agents import AgentSpec
from kubealign_services.agents.pool import AgentPool
from kubealign_services.environments.contract import EnvironmentFailed
from kubealign_services.generation.contract import EngineLost
from kubealign_services.roles.rollout.agents.conversations import Conversations
from kubealign_services.roles.rollout.agents.server import AgentServer
from kubealign_services.roles.rollout.agents.workflow import AgentWorkflow
from kubealign_services.roles.rollout.workflow.contract import WorkflowFailed
from support.agent_sessions import ScriptedPolicy, make_episode
from support.chat_templates import FAMILIES

pytestmark = pytest.mark.timeout(240)

TOKENIZER = FAMILIES["qwen25"].tokenizer()

AGENTS = '''
import asyncio
import os
import threading

from openai import AsyncOpenAI, OpenAI

MEETING = asyncio.Barrier(2)


def ask(client, prompt):
    policy = OpenAI(base_url=client.base_url, api_key=client.api_key, max_retries=0)
    return policy.completions.create(model=client.model, prompt=prompt).choices[0].text


def plain(client, row):
    answer = ask(client, row.prompt)
    return {"reward": len(answer), "metrics": {"asked": 1}, "explanation": row.columns["name"]}


async def meets(client, row):
    """Both agents of the process are in their second turn before either of them ends."""
    async with AsyncOpenAI(base_url=client.base_url, api_key=client.api_key) as policy:
        first = await policy.completions.create(model=client.model, prompt=row.prompt)
        await MEETING.wait()
        prompt = row.prompt + first.choices[0].text + "<|im_end|>" + row.columns["name"]
        second = await policy.completions.create(model=client.model, prompt=prompt)
    return float(second.choices[0].text)


def raises(client, row):
    raise KeyError("no such tool")


def hangs(client, row):
    threading.Event().wait()


def exits(client, row):
    os._exit(3)


def silent(client, row):
    return 1.0


def undefined(client, row):
    ask(client, row.prompt)
    return float("nan")


def persistent(client, row):
    """Hides every error."""
    while True:
        try:
            ask(client, row.prompt)
        except Exception:
            threading.Event().wait()


def narrow(client):
    return 1.0
'''


def ids(text: str) -> list[int]:
    token_ids: list[int] = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    return token_ids


def agent(folder: Path, name: str, seconds: float = 200.0) -> AgentSpec:
    path = folder / "agents.py"
    path.write_text(AGENTS)
    document = {"function": {"file": {"path": str(path), "name": name}}, "timeoutSeconds": seconds}
    return AgentSpec.model_validate(document)


async def run(spec: AgentSpec, pool: AgentPool, server: AgentServer, *turns: str, name: str = "a"):
    """Run one episode and return it."""
    episode = make_episode(TOKENIZER, ScriptedPolicy(TOKENIZER, *turns), ids("what is"))
    episode.columns["name"] = name
    workflow = AgentWorkflow(spec, server, pool, Conversations(TOKENIZER, {}, spec.parser), 1)
    await workflow(episode)
    return episode


async def test_a_plain_agent_gives_its_reward(tmp_path: Path) -> None:
    spec = agent(tmp_path, "plain")
    async with AgentPool(spec) as pool, AgentServer() as server:
        episode = await run(spec, pool, server, "two", name="first")
    reward = episode.transcript.rewards["reward"]
    assert (reward.total, reward.metrics, reward.explanation) == (3.0, {"asked": 1.0}, "first")
    assert episode.transcript.tokens == ids("two<|im_end|>")


async def test_two_agents_of_a_process_run_at_once(tmp_path: Path) -> None:
    """Each has the turns of its own session."""
    spec = agent(tmp_path, "meets")
    async with AgentPool(spec) as pool, AgentServer() as server:
        first, second = await asyncio.gather(
            run(spec, pool, server, "one", "1", name=" a"), run(spec, pool, server, "two", "2", name=" b")
        )
    for episode, answer, between, number in ((first, "one", " a", "1"), (second, "two", " b", "2")):
        last = ids(f"{number}<|im_end|>")
        assert episode.transcript.tokens == [*ids(f"{answer}<|im_end|>"), *ids(between), *last]
        assert episode.transcript.rewards["reward"].total == float(number)


@pytest.mark.parametrize(
    ("name", "seconds", "message"),
    [
        ("raises", 200.0, r"agent raises of .*agents\.py raised KeyError: 'no such tool'"),
        ("silent", 200.0, "ended without a completion of the policy"),
        ("undefined", 200.0, "returned nan; a reward is a finite number"),
        ("hangs", 1.0, r"did not end within 1 s \(rollout\.workflow\.agent\.timeoutSeconds\)"),
        ("exits", 200.0, "its process ended"),
        ("persistent", 200.0, "continues none of the 1 sequences of its session"),
    ],
)
async def test_agents_fail_their_response_alone(
    tmp_path: Path, name: str, seconds: float, message: str
) -> None:
    """A lost process, or one in which an agent hangs, is replaced."""
    spec = agent(tmp_path, name, seconds)
    async with AgentPool(spec) as pool, AgentServer() as server:
        for _ in range(2):
            with pytest.raises(WorkflowFailed, match=message):
                await run(spec, pool, server, "two", "two")


async def test_a_lost_engine_ends_the_episode_as_such(tmp_path: Path) -> None:
    """The work item is delivered again, and the agent is not at fault."""

    class Lost(ScriptedPolicy):
        async def __call__(self, request):
            raise EngineLost("a refit failed")

    spec = agent(tmp_path, "persistent")
    async with AgentPool(spec) as pool, AgentServer() as server:
        episode = make_episode(TOKENIZER, Lost(TOKENIZER), ids("what is"))
        workflow = AgentWorkflow(spec, server, pool, Conversations(TOKENIZER, {}, spec.parser), 1)
        with pytest.raises(EngineLost, match="a refit failed"):
            await workflow(episode)


async def test_a_killed_process_fails_its_agents_and_is_replaced(tmp_path: Path) -> None:
    spec = agent(tmp_path, "plain")
    generating = asyncio.Event()

    class Slow(ScriptedPolicy):
        async def __call__(self, request):
            generating.set()
            return await asyncio.Event().wait()

    async with AgentPool(spec) as pool, AgentServer() as server:
        episode = make_episode(TOKENIZER, Slow(TOKENIZER), ids("what is"))
        workflow = AgentWorkflow(spec, server, pool, Conversations(TOKENIZER, {}, spec.parser), 1)
        running = asyncio.create_task(workflow(episode))
        async with asyncio.timeout(120):
            await generating.wait()
        os.kill(pool.processes[0].pid, signal.SIGKILL)
        with pytest.raises(WorkflowFailed, match="its process ended"):
            await running
        assert not episode.sequences
        assert (await run(spec, pool, server, "two")).transcript.text == "two"


@pytest.mark.parametrize(
    ("name", "message"), [("narrow", r"takes \(client\); an agent takes"), ("absent", "it defines: ask")]
)
async def test_agents_are_checked_at_the_start(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(EnvironmentFailed, match=message) as refusal:
        async with AgentPool(agent(tmp_path, name)):
            pass
    assert refusal.value.permanent
