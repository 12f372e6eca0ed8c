"""A job whose rollout worker has two processes: training works, both processes restart together, and
`kubealign scale` counts workers."""

from pathlib import Path

import pytest

from support.running import RunningJobs
from support.tiny_jobs import PACED_LETTER_A, online_job, set_pace, write_jobs, write_prompts, write_reward

STEPS = 9
RLOO = {"rloo": {"promptsPerStep": 4, "samplesPerPrompt": 2, "kl": {"fixed": {"coefficient": 0}}}}
WORKERS = {f"rollout-{worker}{rank}" for worker in (0, 1) for rank in ("", "-r1")}


def shared_job(folder: Path) -> Path:
    job = online_job(folder, "shared", RLOO, maxSteps=STEPS)
    job["spec"]["rollout"]["engine"] = {"torch": {"maxSequences": 16, "tensorParallel": 2}}
    job["spec"]["rewards"] = [write_reward(folder, PACED_LETTER_A.format(file=str(set_pace(folder, 0.3))))]
    job["spec"]["data"] = {"prompts": {"source": {"path": str(write_prompts(folder, 4 * STEPS))}}}
    return write_jobs(folder, job)


def workers(run: RunningJobs) -> dict[str, int]:
    """Return name -> pid of the rollout workers' processes."""
    return {
        name: each["pid"] for name, each in run.processes("shared").items() if name.startswith("rollout-")
    }


@pytest.mark.timeout(300)
def test_a_worker_of_two_processes(tmp_path: Path) -> None:
    with RunningJobs(shared_job(tmp_path), tmp_path / "runs") as run:
        run.wait_for_step("shared", 2)
        before = workers(run)
        assert set(before) == {"rollout-0", "rollout-0-r1"}
        run.kill("shared", "rollout-0-r1")
        run.wait_for_step("shared", 4)
        after = workers(run)
        assert set(after) == set(before)
        assert not set(after.values()) & set(before.values()), "both were started again"
        run.scale("shared", 2)
        assert set(workers(run)) == WORKERS
        run.wait_until(
            "the second worker", lambda: run.processes("shared")["rollout-1-r1"]["state"] == "Ready", 60
        )
        run.wait_for_step("shared", 6)
        run.scale("shared", 1)
        assert set(workers(run)) == set(before)
        assert run.end(120) == 0, run.output
        steps = run.steps("shared")
        assert sorted(steps) == list(range(1, STEPS + 1))
        # The engine's log-probabilities equal the trainer's.
        assert max(line["rollout/logprob_gap_max"] for line in steps.values()) < 1e-4
        prompts = [prompt for line in run.history("shared") for prompt in line["prompts"]]
        assert sorted(prompts) == sorted(f"0/{row}" for row in range(4 * STEPS))
        output = run.output
        assert output.count("starting rollout-0 again") == 1, "one restart, of the worker as a whole"
