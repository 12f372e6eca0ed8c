"""kill -9 of every process of a job: the job succeeds, and each prompt is trained on exactly once."""

import os
import signal
from pathlib import Path

import pytest

from support.running import RunningJobs, alive
from support.tiny_jobs import (
    FROM_CONFIG,
    PACED_LETTER_A,
    online_job,
    set_pace,
    write_jobs,
    write_prompts,
    write_reward,
)

PROMPTS = 56
STEPS = 14
PPO = {
    "ppo": {
        "promptsPerStep": 4,
        "samplesPerPrompt": 2,
        "minibatchSequences": 4,
        "kl": {"fixed": {"coefficient": 0.02}},
    }
}


def ppo_job(folder: Path, pace: float = 0.2, **spec: object) -> Path:
    """Return a job with every role and exactly one epoch. A step takes at least `pace` seconds, on fast
    machines too, so that faults are injected while the job runs."""
    job = online_job(folder, "killed", PPO, maxSteps=STEPS, critic={"model": FROM_CONFIG}, **spec)
    reward = PACED_LETTER_A.format(file=str(set_pace(folder, pace)))
    job["spec"]["rewards"] = [write_reward(folder, reward)]
    job["spec"]["data"] = {"prompts": {"source": {"path": str(write_prompts(folder, PROMPTS))}}}
    job["spec"]["lifecycle"] = {"maxRestarts": 40}
    return write_jobs(folder, job)


def assert_each_prompt_once(run: RunningJobs) -> None:
    history = run.history("killed")
    assert [line["step"] for line in history] == list(range(1, STEPS + 1))
    trained = [prompt for line in history for prompt in line["prompts"]]
    assert sorted(trained) == sorted(f"0/{row}" for row in range(PROMPTS))
    assert (run.folder("killed") / "result" / "config.json").exists()


def standing_back(run: RunningJobs) -> set[str]:
    """Return the processes with a lowered CPU priority."""
    pids = {name: process["pid"] for name, process in run.processes("killed").items() if process["pid"]}
    return {name for name, pid in pids.items() if os.getpriority(os.PRIO_PROCESS, pid) > os.nice(0)}


@pytest.mark.timeout(400)
def test_each_role_is_killed_in_turn_and_the_job_ends_well(tmp_path: Path) -> None:
    victims = [
        "rollout-0",
        "reward-letters-0",
        "reference-0",
        "driver",
        "nats",
        "redis",
        "trainer-0",
        "critic-0",
    ]
    with RunningJobs(ppo_job(tmp_path), tmp_path / "runs") as run:
        run.wait_for_step("killed", 1)
        assert standing_back(run) == {"reward-letters-0", "reference-0", "trainer-0", "critic-0"}
        for turn, victim in enumerate(victims):
            run.wait_for_step("killed", turn + 2)
            run.kill("killed", victim)
        assert run.end(240) == 0, run.output
        assert_each_prompt_once(run)
        driver = (run.folder("killed") / "logs" / "driver.log").read_text()
        assert "continuing without a rollback" in driver, (
            "the driver that died alone found the others as they were"
        )


@pytest.mark.timeout(400)
def test_nats_comes_back_empty_and_nothing_is_done_twice(tmp_path: Path) -> None:
    """Simulate the loss of the server's store: the bus contents are published again, and no other process
    restarts."""
    with RunningJobs(ppo_job(tmp_path), tmp_path / "runs") as run:
        for turn in range(5):
            run.wait_for_step("killed", 2 * turn + 2)
            store = run.folder("killed") / "nats" / "store"
            # Renamed instead of deleted: the server may restart before a deletion is complete.
            store.rename(store.with_name(f"lost-{turn}"))
            run.kill("killed", "nats")
        assert run.end(240) == 0, run.output
        assert_each_prompt_once(run)
        assert {line["fence"] for line in run.history("killed")} == {1}, "the driver did not start over"
        driver = (run.folder("killed") / "logs" / "driver.log").read_text()
        assert "the message bus has lost its data" in driver
        assert "a group failed" not in driver


@pytest.mark.timeout(400)
def test_ctrl_c_and_a_kill_of_everything_and_the_same_command_goes_on(tmp_path: Path) -> None:
    with RunningJobs(ppo_job(tmp_path), tmp_path / "runs") as run:
        run.wait_for_step("killed", 4)
        pids = run.pids("killed")
        run.send(signal.SIGINT)
        assert run.end(60) == 130, run.output
        assert alive(pids) == []
        stopped = max(run.steps("killed"))
        assert f"stopped at step {stopped}; the same command resumes from there" in run.output

        run.start()
        # A commit after every third step: one of this run is complete.
        run.wait_for_step("killed", stopped + 4)
        pids = run.pids("killed")
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        assert run.end(30) == -signal.SIGKILL

        run.start()
        assert run.end(200) == 0, run.output
        assert alive(pids) == []
        assert_each_prompt_once(run)
        fences = [line["fence"] for line in run.history("killed")]
        assert fences.index(fences[stopped]) == stopped, "nothing that was done before Ctrl-C was done again"
        assert len(set(fences)) == 3, "steps of all three runs are in the history"


@pytest.mark.timeout(400)
def test_workers_join_and_leave_and_one_rank_of_two_is_killed(tmp_path: Path) -> None:
    with RunningJobs(ppo_job(tmp_path, pace=3.0, trainer={"ranks": 2}), tmp_path / "runs") as run:
        run.wait_for_step("killed", 2)
        run.scale("killed", 2)
        run.wait_until(
            "the newcomer's weights",
            lambda: any(line.get("refit/workers") == 2 for line in run.metrics("killed")),
            120,
        )
        set_pace(tmp_path, 0.2)
        run.kill("killed", "rollout-0")
        before = run.processes("killed")["trainer-0"]["pid"]
        run.wait_for_step("killed", max(run.steps("killed")) + 2)
        run.kill("killed", "trainer-1")
        assert run.end(240) == 0, run.output
        assert_each_prompt_once(run)
        assert not alive([before])
