"""A rank that hangs is killed by the default probes, and the job trains on within two minutes."""

import os
import signal
import time
from pathlib import Path

import pytest

from support.running import RunningJobs
from support.tiny_jobs import PACED_LETTER_A, online_job, set_pace, write_jobs, write_reward

NAME = "hung"
STEPS = 400
LIMIT_SECONDS = 120.0


@pytest.mark.timeout(600)
@pytest.mark.parametrize("rank", ["trainer-0", "trainer-1"])
def test_a_hung_rank_costs_less_than_two_minutes(tmp_path: Path, rank: str) -> None:
    reward = write_reward(tmp_path, PACED_LETTER_A.format(file=str(set_pace(tmp_path, 0.5))))
    grpo = {"promptsPerStep": 4, "samplesPerPrompt": 2, "kl": {"fixed": {"coefficient": 0}}}
    job = online_job(tmp_path, NAME, {"grpo": grpo}, maxSteps=STEPS, trainer={"ranks": 2}, rewards=[reward])
    with RunningJobs(write_jobs(tmp_path, job), tmp_path / "runs") as run:
        run.wait_for_step(NAME, 4)
        os.kill(run.processes(NAME)[rank]["pid"], signal.SIGSTOP)
        # A step that was under way may still end.
        began, lines = time.monotonic(), len(run.metrics(NAME)) + 1
        run.wait_until(
            f"a step after the stop of {rank}", lambda: len(run.metrics(NAME)) > lines, LIMIT_SECONDS
        )
        print(f"{rank} hung: the next step ended after {time.monotonic() - began:.0f} s")
        assert f"{rank} gave no sign of life" in run.output
