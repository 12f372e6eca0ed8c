"""A job whose two ranks share the tokens of each pack: it trains, refits its engine, and exports."""

from pathlib import Path

import pytest

from support.running import RunningJobs, left_running
from support.tiny_jobs import online_job, write_jobs


@pytest.mark.timeout(300)
def test_engine_and_trainer_agree_on_every_step(tmp_path: Path) -> None:
    trainer = {
        "ranks": 2,
        "backend": {"torch": {"contextParallel": 2, "microbatchTokens": 32, "gradientCheckpointing": True}},
        "optimizer": {"adamW": {"learningRate": 1.0e-3}},
    }
    job = online_job(
        tmp_path,
        "long",
        {"grpo": {"promptsPerStep": 4, "samplesPerPrompt": 4}},
        maxSteps=3,
        trainer=trainer,
        rollout={"engine": {"torch": {"maxSequences": 16}}, "sampling": {"maxTokens": 15, "minTokens": 15}},
    )
    with RunningJobs(write_jobs(tmp_path, job), tmp_path / "runs") as run:
        assert run.end(timeout=250) == 0, run.output
        lines = [line for line in run.metrics("long") if "seconds/step" in line]
        assert [line["step"] for line in lines] == [1, 2, 3]
        assert max(line["rollout/logprob_gap_max"] for line in lines) < 1e-4
        assert max(line["refit/canary_gap"] for line in lines) < 1e-4
        assert (run.folder("long") / "result" / "config.json").exists()
    assert not left_running(tmp_path)
