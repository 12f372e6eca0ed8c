"""A job without a learning rate trains at its algorithm's default and logs the value once."""

import json
from pathlib import Path

import pytest

from support.running import RunningJobs
from support.tiny_jobs import sft_job, write_jobs

pytestmark = pytest.mark.timeout(180)


def test_the_trainer_logs_the_rate_that_it_uses(tmp_path: Path) -> None:
    job = sft_job(tmp_path, "plain", maxSteps=2, trainer={"ranks": 2})
    with RunningJobs(write_jobs(tmp_path, job), tmp_path / "runs") as run:
        assert run.end(timeout=150.0) == 0, run.output
        assert [row["trainer/learning_rate"] for row in run.metrics("plain")] == [2e-5, 2e-5]
        logs = sorted((run.folder("plain") / "logs").glob("trainer-*.log"))
        lines = [json.loads(line) for log in logs for line in log.read_text().splitlines() if line[:1] == "{"]
    (line,) = [line for line in lines if line["message"] == "peak learning rate"]
    assert (line["learning_rate"], line["origin"]) == (2e-5, "default for sft")
