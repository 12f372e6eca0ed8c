"""A reference and a reward model with two ranks each give the metrics of unsharded ones, and survive the loss
of a rank."""

from pathlib import Path
from typing import Any

import pytest

from support.running import RunningJobs
from support.tiny_jobs import PACED_LETTER_A, online_job, set_pace, write_jobs, write_prompts, write_reward
from support.tiny_rewards import policy_folder, reward_folder

LETTERS = "abcdefgh"
STEPS = 6
RLOO = {"rloo": {"promptsPerStep": 4, "samplesPerPrompt": 2, "kl": {"fixed": {"coefficient": 0.1}}}}
#: Parts of the names of metrics that depend on time.
TIMES = ("seconds", "time", "tokens_per")


def scored_job(folder: Path, name: str, steps: int, ranks: int) -> dict[str, Any]:
    paced = write_reward(folder, PACED_LETTER_A.format(file=str(set_pace(folder, 0.2))))
    model = {"name": "model", "model": {"path": str(folder / "reward")}, "ranks": ranks}
    return online_job(
        folder,
        name,
        RLOO,
        maxSteps=steps,
        policy={"model": {"path": str(folder / "policy")}},
        data={"prompts": {"source": {"path": str(write_prompts(folder, 4 * STEPS))}}},
        reference={"model": {"path": str(folder / "reference")}, "ranks": ranks},
        rewards=[model, paced],
    )


def repeatable(line: dict[str, Any]) -> dict[str, float]:
    return {
        name: value
        for name, value in line.items()
        if isinstance(value, int | float) and not any(part in name for part in TIMES)
    }


@pytest.mark.timeout(300)
def test_sharded_scorers_and_a_killed_rank(tmp_path: Path) -> None:
    policy_folder(tmp_path / "policy", LETTERS)
    policy_folder(tmp_path / "reference", LETTERS, seed=2)
    reward_folder(tmp_path / "reward", LETTERS, seed=3)
    jobs = [scored_job(tmp_path, "sharded", STEPS, ranks=2), scored_job(tmp_path, "single", 2, ranks=1)]
    with RunningJobs(write_jobs(tmp_path, *jobs), tmp_path / "runs") as run:
        run.wait_for_step("sharded", 2)
        before = {name: each["pid"] for name, each in run.processes("sharded").items()}
        replicas = {"reference-0", "reference-0-r1", "reward-model-0", "reward-model-0-r1"}
        scorers = {name for name in before if name.startswith(("reference", "reward"))}
        assert scorers == replicas | {"reward-letters-0"}
        run.kill("sharded", "reward-model-0-r1")
        run.wait_for_step("sharded", 4)
        after = {name: each["pid"] for name, each in run.processes("sharded").items()}
        restarted = {name for name in before if after[name] != before[name]}
        assert restarted == {"reward-model-0", "reward-model-0-r1"}, "the replica, and no other process"
        assert run.end(200) == 0, run.output
        assert run.output.count("starting reward-model-0 again") == 1
        sharded, single = run.steps("sharded"), run.steps("single")
    assert sorted(sharded) == list(range(1, STEPS + 1))
    first = repeatable(single[1])
    assert first["reward/model/std"] > 0.1 and abs(first["kl/reference"]) > 0.1
    assert repeatable(sharded[1]) == pytest.approx(first, abs=1e-5, rel=1e-5)
