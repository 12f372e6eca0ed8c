"""Rows of prompts that the environment of a job writes."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubealign_services.environments.rows import main
from support.tiny_jobs import online_job

pytestmark = pytest.mark.timeout(120)

GAMES = """
from kubealign_services.environments import Observation

class Sums:
    def reset(self, seed, columns):
        return f"{seed}+1="

    def step(self, action):
        raise AssertionError

class Talk(Sums):
    def reset(self, seed, columns):
        roles = ("system", "user")
        return Observation(messages=[{"role": role, "content": "be brief"} for role in roles])

class Silent(Sums):
    def reset(self, seed, columns):
        pass
"""


def write_jobs(folder: Path, **environments: dict[str, Any]) -> Path:
    """Write a job for each environment, whose functions are in games.py."""
    (folder / "games.py").write_text(GAMES)
    jobs = []
    for name, settings in environments.items():
        workflow = {"environment": settings | {"concurrency": 2}}
        rollout = {"sampling": {"maxTokens": 8}, "workflow": workflow}
        jobs.append(online_job(folder, name, {"grpo": {"promptsPerStep": 4}}, rollout=rollout, maxSteps=1))
    path = folder / "jobs.yaml"
    path.write_text(yaml.safe_dump_all(jobs))
    return path


def game(name: str, **settings: Any) -> dict[str, Any]:
    return {"function": {"file": {"path": "games.py", "name": name}}, **settings}


def test_a_row_has_the_first_observation_and_its_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_jobs(
        tmp_path,
        sums=game("Sums"),
        chat=game("Sums", observation="Chat"),
        talk=game("Talk", observation="Chat"),
    )
    assert main([str(path), "--job", "sums", "--rows", "5", "--seed", "7"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert rows == [{"prompt": f"{seed}+1=", "seed": seed} for seed in range(7, 12)]
    assert main([str(path), "--job", "chat", "--rows", "1"]) == 0
    (row,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert row == {"messages": [{"role": "user", "content": "0+1="}], "seed": 0}
    assert main([str(path), "--job", "talk", "--rows", "1"]) == 0
    (row,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert [message["role"] for message in row["messages"]] == ["system", "user"]


def test_errors_are_messages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_jobs(tmp_path, silent=game("Silent"), sums=game("Sums"))
    expected = {
        (): "--job is required unless one job has an environment; those that have: silent, sums",
        (
            "--job",
            "other",
        ): "--job other: no job of this name has an environment; those that have: silent, sums",
        (
            "--job",
            "silent",
        ): "the environment shows nothing at its start (seed 0): write the prompts yourself",
    }
    for options, message in expected.items():
        assert main([str(path), *options]) == 1
        printed = capsys.readouterr()
        assert message in printed.err
        assert printed.out == ""
