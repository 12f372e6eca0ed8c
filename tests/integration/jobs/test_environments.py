"""Jobs whose responses are played in environments, through the real command."""

import json
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from support.doc_blocks import ROOT
from support.running import RunningJobs
from support.tiny_jobs import ARCHITECTURE, online_job, write_jobs

#: A model with room for questions.
LONG = ARCHITECTURE | {"max_position_embeddings": 256}

pytestmark = pytest.mark.timeout(240)


def read_samples(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "samples.jsonl").read_text().splitlines()]


def possible_rewards(response: str) -> list[float]:
    """Return the rewards that a game of examples/environments may have, from its text: wrong guesses, each
    followed by the game's answer, and a last guess, whose answer is not shown.
    """
    # One token each; a special one, such as <pad>, is written out.
    tokens = re.findall(r"<[a-z]+>|.", response, re.DOTALL)
    # A turn that ended at once has no text.
    *wrong, last = tokens[::2] if len(tokens) % 2 else [*tokens[::2], ""]
    assert all(guess.isdecimal() for guess in wrong), response
    assert set(tokens[1::2]) <= {"<", ">"}, response
    lasts = [1.0, -0.1] if last.isdecimal() else [-1.0]
    return [pytest.approx(value - 0.1 * len(wrong)) for value in lasts]


def test_the_example_of_a_game(tmp_path: Path) -> None:
    """The rewards of the samples are those of the games in their texts."""
    folder = tmp_path / "game"
    shutil.copytree(ROOT / "examples" / "environments", folder, ignore=shutil.ignore_patterns("__pycache__"))
    subprocess.run([sys.executable, "make_data.py", "data"], cwd=folder, check=True, timeout=60)
    options = ["--param", f"DATA={folder / 'data'}", "--set", "guess-the-number:spec.maxSteps=2"]
    with RunningJobs(folder / "jobs.yaml", tmp_path / "runs", "--no-dashboard", *options) as run:
        assert run.end(200) == 0, run.output[-4000:]
        figures = run.steps("guess-the-number")
    assert 1 <= figures[2]["rollout/turns"] <= 4
    assert 0 <= figures[2]["reward/game/won"] <= 1
    assert figures[1]["rollout/logprob_gap_max"] < 1e-3
    assert "val/reward/game" in run.output
    samples = read_samples(tmp_path / "runs" / "guess-the-number")
    assert samples
    for sample in samples:
        assert sample["rewards"]["game"] in possible_rewards(sample["response"]), sample


@pytest.mark.skipif(find_spec("reasoning_gym") is None, reason="reasoning-gym is not installed here")
def test_rows_of_reasoning_gym_are_scored_by_their_task(tmp_path: Path) -> None:
    """The rows that the environment writes are the prompts of the job, and a wrong answer has the task's
    reward for it.
    """
    environment = {"reasoningGym": {"dataset": "chain_sum"}, "parameters": {"min_terms": 2, "max_terms": 2}}
    job = online_job(
        tmp_path,
        "sums",
        {"grpo": {"promptsPerStep": 4, "samplesPerPrompt": 2}},
        rollout={"sampling": {"maxTokens": 4}, "workflow": {"environment": environment}},
        rewards=[{"name": "sums", "episode": {}}],
        policy={"model": {"config": {"architecture": LONG, "tokenizer": {"train": {"characters": {}}}}}},
        maxSteps=1,
    )
    rows = tmp_path / "questions.jsonl"
    job["spec"]["data"] = {"prompts": {"source": {"path": str(rows)}}}
    path = write_jobs(tmp_path, job)
    module = [sys.executable, "-m", "kubealign_services.environments.rows", str(path), "--rows", "8"]
    rows.write_bytes(subprocess.run(module, check=True, timeout=120, stdout=subprocess.PIPE).stdout)
    prompts = [json.loads(line)["prompt"] for line in rows.read_text().splitlines()]
    assert len(prompts) == 8
    assert all("+" in prompt or "-" in prompt for prompt in prompts)
    with RunningJobs(path, tmp_path / "runs", "--no-dashboard") as run:
        assert run.end(200) == 0, run.output[-4000:]
        figures = run.steps("sums")
    assert figures[1]["rollout/turns"] == 1
    samples = read_samples(tmp_path / "runs" / "sums")
    assert samples
    for sample in samples:
        assert sample["prompt"] in prompts
        # reasoning-gym gives 0 to no answer and 0.01 to a wrong one.
        assert sample["rewards"]["sums"] in (0.0, 0.01, 1.0)
