"""Rollouts of environments of the real package verifiers, against the rollout worker's server."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kubealign.spec.workflows.agents import AgentSpec
from kubealign_services.agents.pool import AgentPool
from kubealign_services.environments.contract import EnvironmentFailed
from kubealign_services.roles.rollout.agents.conversations import Conversations
from kubealign_services.roles.rollout.agents.server import AgentServer
from kubealign_services.roles.rollout.agents.workflow import AgentWorkflow
from kubealign_services.roles.rollout.workflow.contract import WorkflowFailed
from kubealign_services.roles.rollout.workflow.episode import Episode
from support.agent_sessions import ScriptedPolicy, make_episode
from support.chat_templates import FAMILIES
from support.environment_packages import needs_package
from support.tiny_jobs import online_job, write_jobs

pytestmark = [needs_package("verifiers", "verifiers"), pytest.mark.timeout(240)]

TOKENIZER = FAMILIES["qwen25"].tokenizer()

#: Sums, of which the second is too hard for the function that scores it.
SUMS = """
import verifiers.v1 as vf

__all__ = ["Sums"]


class SumsConfig(vf.TasksetConfig):
    offset: int = 0


class SumData(vf.TaskData):
    answer: int


class Sum(vf.Task[SumData]):
    @vf.reward(weight=2.0)
    async def correct(self, task, trace) -> float:
        if task.answer == 2:
            raise KeyError("no key for two")
        return float(trace.last_reply == str(task.answer))

    @vf.reward(weight=0.5)
    async def short(self, trace) -> float:
        return float(len(trace.last_reply) < 3)

    @vf.metric
    async def mean(self, trace) -> float:
        return len(trace.last_reply)


class Sums(vf.Taskset[Sum, SumsConfig]):
    def load(self):
        for number in range(3):
            prompt, answer = f"what is {number} and {number}", 2 * number + self.config.offset
            yield Sum(SumData(prompt=prompt, system_prompt="helpful", answer=answer), self.config.task)
"""

#: A task whose answer a tool has.
SHELF = '''
import verifiers.v1 as vf

__all__ = ["Books"]


class Shelf(vf.Toolset[vf.ToolsetConfig, vf.State]):
    @vf.tool
    async def find(self, title: str) -> str:
        """Find a book."""
        return f"{title} is on shelf two"


class Book(vf.Task[vf.TaskData]):
    @classmethod
    def toolsets(cls, config):
        return [Shelf(vf.ToolsetConfig())]

    @vf.reward
    async def found(self, trace) -> float:
        return float(trace.last_reply == "two")


class Books(vf.Taskset[Book]):
    def load(self):
        yield Book(vf.TaskData(prompt="which shelf"), self.config.task)


if __name__ == "__main__":
    Shelf.run()
'''

#: Two agents, of which the second has a model elsewhere or is the policy too. The environment asks twice.
PAIR = """
import verifiers.v1 as vf

from sums import Sums

__all__ = ["Pair", "PairSums"]


class PairConfig(vf.EnvConfig):
    first: vf.AgentConfig = vf.AgentConfig()
    second: vf.AgentConfig = vf.AgentConfig()


class Pair(vf.Env[PairConfig]):
    async def run(self, task, agents):
        async with agents.first.interaction(task) as interaction:
            await interaction.turn()
            await interaction.turn("as a number")


class PairSums(Sums):
    pass
"""


def ids(text: str) -> list[int]:
    token_ids: list[int] = TOKENIZER(text, add_special_tokens=False)["input_ids"]
    return token_ids


def write_environment(folder: Path, name: str, config: dict[str, Any] | None = None) -> AgentSpec:
    """Write the modules and return an agent with the environment of the named taskset."""
    for module, source in {"sums": SUMS, "shelf": SHELF, "pair": PAIR}.items():
        (folder / f"{module}.py").write_text(source)
    document = {"verifiers": {"taskset": name, "folder": str(folder), "config": config or {}}}
    return AgentSpec.model_validate(document)


def write_rows(folder: Path, spec: AgentSpec, *options: str) -> list[dict[str, Any]]:
    """Return the rows that the command writes for a job with the agent."""
    workflow = {"agent": spec.model_dump(by_alias=True, exclude_none=True, mode="json")}
    rewards = [{"name": "solved", "episode": {}}]
    rollout = {"sampling": {"maxTokens": 64}, "workflow": workflow}
    path = write_jobs(folder, online_job(folder, "sums", {"grpo": {}}, rewards=rewards, rollout=rollout))
    command = [sys.executable, "-m", "kubealign_services.agents.verifiers.rows", str(path), *options]
    result = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert result.returncode == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


async def run(
    spec: AgentSpec, pool: AgentPool, server: AgentServer, row: dict[str, Any], *turns: str
) -> Episode:
    """Run the rollout of a row and return its episode."""
    episode = make_episode(TOKENIZER, ScriptedPolicy(TOKENIZER, *turns), ids("what is"), max_tokens=2000)
    episode.columns.update(row)
    workflow = AgentWorkflow(spec, server, pool, Conversations(TOKENIZER, {}, spec.parser), 1)
    await workflow(episode)
    return episode


async def test_a_single_turn_gives_its_reward_and_metrics(tmp_path: Path) -> None:
    """An episode whose scoring raises fails alone."""
    spec = write_environment(tmp_path, "sums", {"taskset": {"offset": 0}})
    rows = write_rows(tmp_path, spec)
    assert [row["task_index"] for row in rows] == [0, 1, 2]
    assert rows[2]["messages"] == [
        {"role": "system", "content": "helpful"},
        {"role": "user", "content": "what is 2 and 2"},
    ]
    async with AgentPool(spec) as pool, AgentServer() as server:
        episode = await run(spec, pool, server, rows[2], "four")
        with pytest.raises(
            WorkflowFailed, match=r"agent verifiers sums failed: .*KeyError: 'no key for two'"
        ):
            await run(spec, pool, server, rows[1], "two")
        first = await run(spec, pool, server, rows[0], "0")
    (sequence,) = episode.sequences
    reward = sequence.transcript.rewards["reward"]
    assert (reward.total, reward.metrics) == (0.0, {"correct": 0.0, "short": 0.0, "mean_value": 4.0})
    assert sequence.transcript.tokens == ids("four<|im_end|>")
    options = {"tokenize": False, "add_generation_prompt": True}
    assert TOKENIZER.decode(sequence.prompt_tokens) == TOKENIZER.apply_chat_template(
        rows[2]["messages"], **options
    )
    reward = first.sequences[-1].transcript.rewards["reward"]
    assert (reward.total, reward.metrics) == (2.5, {"correct": 1.0, "short": 1.0, "mean_value": 1.0})
    assert reward.explanation == "2 * correct (1) + 0.5 * short (1)"


async def test_a_rollout_with_a_tool_is_one_sequence(tmp_path: Path) -> None:
    spec = write_environment(tmp_path, "shelf")
    call = '<tool_call>\n{"name": "shelf_find", "arguments": {"title": "Emma"}}\n</tool_call>'
    async with AgentPool(spec) as pool, AgentServer() as server:
        episode = await run(spec, pool, server, {"task_index": 0}, call, "two")
    (sequence,) = episode.sequences
    text = TOKENIZER.decode(sequence.transcript.tokens)
    assert text.startswith(call) and text.endswith("two<|im_end|>")
    assert "Emma is on shelf two" in text[len(call) : -len("two<|im_end|>")]
    assert sequence.transcript.rewards["reward"].total == 1.0


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("sum", {}, r"agent verifiers sum is no installed taskset; installed are .*textarena"),
        ("sums", {"taskset": {"offset": "far"}}, r"config: taskset\.offset: .*valid integer.*'far'"),
        ("sums", {"agent": {"turns": 2}}, r"config: agent\.turns: .*not permitted"),
        ("pair", {}, "has the agents first, second, of which first, second would be the policy"),
    ],
)
async def test_environments_are_checked_at_the_start(
    tmp_path: Path, name: str, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(EnvironmentFailed, match=message) as refusal:
        async with AgentPool(write_environment(tmp_path, name, config)):
            pass
    assert refusal.value.permanent


async def test_turns_of_the_environments_user_continue_the_sequence(tmp_path: Path) -> None:
    """The agent that has a model of its own is not the policy."""
    elsewhere = {"client": {"type": "eval", "base_url": "http://127.0.0.1:9/v1", "api_key_var": "NO_KEY"}}
    spec = write_environment(tmp_path, "pair", {"second": elsewhere})
    async with AgentPool(spec) as pool, AgentServer() as server:
        episode = await run(spec, pool, server, {"task_index": 0}, "zero", "0")
    (sequence,) = episode.sequences
    text = TOKENIZER.decode(sequence.transcript.tokens)
    assert text.startswith("zero<|im_end|>") and text.endswith("0<|im_end|>")
    assert "as a number" in text
    assert sequence.transcript.rewards["reward"].total == 2.5


async def test_rows_must_name_a_task(tmp_path: Path) -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "task_index: the row holds None, not the position of a task"),
        ({"task_index": 3}, "task_index: the row holds 3; the taskset has the tasks 0 to 2"),
        ({"task_index": 0, "task_key": "0"}, "task_key: task 0 of the taskset is another one"),
    ]
    spec = write_environment(tmp_path, "sums")
    async with AgentPool(spec) as pool, AgentServer() as server:
        for row, message in cases:
            with pytest.raises(WorkflowFailed, match=message):
                await run(spec, pool, server, row, "0")
