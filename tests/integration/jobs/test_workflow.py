"""Multi-turn responses through the real command: a custom workflow, and the example with its tool."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.doc_blocks import ROOT
from support.running import RunningJobs
from support.tiny_jobs import online_job, write_jobs

pytestmark = pytest.mark.timeout(240)

FLOW = """
async def workflow(episode):
    turn = await episode.generate(max_tokens=2)
    if not turn.truncated and episode.put("abc"):
        await episode.generate(max_tokens=2)
"""


def test_custom_workflow_and_its_learned_tokens(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(FLOW)
    workflow = {"function": {"file": {"path": str(tmp_path / "flow.py")}}}
    rollout = {"sampling": {"maxTokens": 12, "minTokens": 12}, "workflow": workflow}
    algorithm = {"grpo": {"promptsPerStep": 4, "samplesPerPrompt": 4, "minibatchSequences": 8}}
    job = online_job(tmp_path, "flow", algorithm, rollout=rollout, maxSteps=2)
    with RunningJobs(write_jobs(tmp_path, job), tmp_path / "runs", "--no-dashboard") as run:
        assert run.end(200) == 0, run.output
        figures = run.steps("flow")
    assert [figures[step]["rollout/turns"] for step in (1, 2)] == [2, 2]
    # The policy generates two tokens of each turn; the three tokens in between are not sampled.
    assert [figures[step]["response/length"] for step in (1, 2)] == [4, 4]
    assert figures[1]["rollout/logprob_gap_max"] < 1e-3
    samples = [
        json.loads(line) for line in (tmp_path / "runs" / "flow" / "samples.jsonl").read_text().splitlines()
    ]
    assert samples
    assert all("abc" in sample["response"] for sample in samples)


GAME = """
async def workflow(episode):
    turn = await episode.generate(max_tokens=2)
    episode.reward(turn.text.count("a"), metrics={"moves": 2})
    if not turn.truncated and episode.put("abc"):
        turn = await episode.generate(max_tokens=2)
        episode.reward(turn.text.count("a"), explanation="ended with " + turn.text)
"""


@pytest.mark.parametrize(
    "algorithm",
    [
        {"grpo": {"promptsPerStep": 4, "samplesPerPrompt": 4}},
        {"ppo": {"promptsPerStep": 8, "samplesPerPrompt": 2, "minibatchSequences": 8}},
    ],
    ids=["grpo", "ppo"],
)
def test_rewards_that_a_workflow_gives(tmp_path: Path, algorithm: dict[str, object]) -> None:
    """The rewards equal the letters that the policy wrote itself, in samples, metrics and validation."""
    (tmp_path / "game.py").write_text(GAME)
    workflow = {"function": {"file": {"path": str(tmp_path / "game.py")}}}
    rollout = {"sampling": {"maxTokens": 12, "minTokens": 12}, "workflow": workflow}
    critic = {"critic": {"model": online_job(tmp_path, "c", algorithm)["spec"]["policy"]["model"]}}
    job = online_job(
        tmp_path,
        "game",
        algorithm,
        rollout=rollout,
        rewards=[{"name": "letters", "weight": 2.0, "episode": {}}],
        maxSteps=2,
        **(critic if "ppo" in algorithm else {}),
    )
    with RunningJobs(write_jobs(tmp_path, job), tmp_path / "runs", "--no-dashboard") as run:
        assert run.end(200) == 0, run.output
        figures = run.steps("game")
    assert figures[1]["reward/letters/moves"] == 2
    assert figures[1]["reward/mean"] == pytest.approx(2 * figures[1]["reward/letters/mean"])
    samples = [
        json.loads(line) for line in (tmp_path / "runs" / "game" / "samples.jsonl").read_text().splitlines()
    ]
    assert samples
    for sample in samples:
        first, second = sample["response"].split("abc", 1)
        assert sample["rewards"]["letters"] == first.count("a") + second.count("a")
        assert sample["explanations"]["letters"] == "ended with " + second


def test_a_reward_that_nothing_takes_fails_its_group_with_the_names(tmp_path: Path) -> None:
    (tmp_path / "game.py").write_text(GAME.replace('.count("a"),', '.count("a"), "other",', 1))
    workflow = {"function": {"file": {"path": str(tmp_path / "game.py")}}}
    rollout = {"sampling": {"maxTokens": 12}, "workflow": workflow, "groupRetries": 0}
    job = online_job(
        tmp_path,
        "game",
        {"grpo": {"promptsPerStep": 4}},
        rollout=rollout,
        rewards=[{"name": "letters", "episode": {}}],
        lifecycle={"maxFailedGroups": 0},
        maxSteps=1,
    )
    with RunningJobs(write_jobs(tmp_path, job), tmp_path / "runs", "--no-dashboard") as run:
        assert run.end(200) == 1, run.output
        assert "no reward of the job takes 'other' from episodes; the names are reward" in run.output


def test_the_example_with_a_calculator(tmp_path: Path) -> None:
    folder = tmp_path / "tools"
    shutil.copytree(ROOT / "examples" / "tools", folder, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run([sys.executable, "make_data.py", "data"], cwd=folder, check=True, timeout=60)
    fewer = ["--set", "tools-sft:spec.maxSteps=3", "--set", "tools-grpo:spec.maxSteps=2"]
    data = ["--param", f"DATA={folder / 'data'}"]
    with RunningJobs(folder / "jobs.yaml", tmp_path / "runs", "--no-dashboard", *data, *fewer) as run:
        assert run.end(200) == 0, run.output[-4000:]
        figures = run.steps("tools-grpo")
    assert figures[2]["rollout/turns"] >= 1
    assert "val/asked" in run.output


def test_a_tool_that_is_not_there_fails_the_job_when_it_starts(tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text("def add(argument):\n    return argument\n")
    tool = {"name": "add", "function": {"file": {"path": str(tmp_path / "tools.py"), "name": "sum"}}}
    rollout = {"sampling": {"maxTokens": 8}, "workflow": {"tools": {"tools": [tool]}}}
    job = online_job(tmp_path, "tools", {"grpo": {"promptsPerStep": 4}}, rollout=rollout, maxSteps=2)
    with RunningJobs(write_jobs(tmp_path, job), tmp_path / "runs", "--no-dashboard") as run:
        assert run.end(200) == 1, run.output
        assert "is not defined there; it defines: add" in run.output, run.output
