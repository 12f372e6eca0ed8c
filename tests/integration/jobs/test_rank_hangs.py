"""A rank that hangs during a step without exiting: the other ranks time out, and the whole group restarts."""

import os
import re
import signal
from pathlib import Path

import pytest

from support.running import RunningJobs, alive
from support.tiny_jobs import PACED_LETTER_A, online_job, set_pace, write_jobs, write_reward

STEPS = 10


@pytest.mark.full
@pytest.mark.timeout(300)
def test_one_rank_of_a_megatron_trainer_is_stopped_and_the_group_starts_again(tmp_path: Path) -> None:
    """Stop a rank with SIGSTOP: its connections stay open, and it answers neither the other ranks nor
    SIGTERM."""
    reward = write_reward(tmp_path, PACED_LETTER_A.format(file=str(set_pace(tmp_path, 0.2))))
    grpo = {"promptsPerStep": 4, "samplesPerPrompt": 2, "kl": {"fixed": {"coefficient": 0}}}
    trainer = {
        "ranks": 2,
        "backend": {"megatron": {"tensorParallel": 2, "microbatchTokens": 32}},
        "stepTimeoutSeconds": 20,
    }
    job = online_job(
        tmp_path,
        "hanging",
        {"grpo": grpo},
        maxSteps=STEPS,
        trainer=trainer,
        rewards=[reward],
        lifecycle={"maxRestarts": 10},
    )
    with RunningJobs(write_jobs(tmp_path, job), tmp_path / "runs") as run:
        run.wait_for_step("hanging", 3)
        before = [run.processes("hanging")[name]["pid"] for name in ("trainer-0", "trainer-1")]
        os.kill(before[1], signal.SIGSTOP)
        assert run.end(200) == 0, run.output
        assert [line["step"] for line in run.history("hanging")] == list(range(1, STEPS + 1))
        assert not alive(before)
        log = (run.folder("hanging") / "logs" / "trainer-0.log").read_text()
        # The rank may have been stopped in any command.
        assert re.search(r"rank 1 did not answer \w+ within 20 s", log)
        assert (run.folder("hanging") / "result" / "config.json").exists()
