"""Jobs whose length is a number of epochs: their schedules end with the last step."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from kubealign.cli.main import app
from support.running import RunningJobs
from support.tiny_jobs import FROM_CONFIG, online_job, sft_job, write_jobs

pytestmark = pytest.mark.timeout(300)

LINEAR = {"optimizer": {"adamW": {"learningRate": 6.0e-4}, "schedule": {"linear": {}}}}


def test_schedules_end_with_the_last_epoch(tmp_path: Path) -> None:
    # 16 rows twice, 6 in each step: five steps and two rows more. The epochs alone end the job.
    rows = sft_job(
        tmp_path, "rows", maxSteps=None, algorithm={"sft": {"rowsPerStep": 6, "maxEpochs": 2}}, trainer=LINEAR
    )
    # 40 prompts twice, 32 in each step: two steps and 16 prompts more. Two optimiser steps in each step.
    prompts = online_job(
        tmp_path,
        "prompts",
        {"ppo": {"promptsPerStep": 32, "minibatchSequences": 16, "maxEpochs": 2}},
        maxSteps=1000,
        trainer=LINEAR,
        critic=LINEAR | {"model": FROM_CONFIG},
    )
    with RunningJobs(write_jobs(tmp_path, rows, prompts), tmp_path / "runs") as run:
        assert run.end(timeout=280.0) == 0, run.output
        row_steps, prompt_steps = run.metrics("rows"), run.metrics("prompts")
    assert [step["trainer/learning_rate"] for step in row_steps] == pytest.approx(
        [5.0e-4, 4.0e-4, 3.0e-4, 2.0e-4, 1.0e-4, 0.0]
    )
    assert [step["batch/sequences"] for step in row_steps] == [6, 6, 6, 6, 6, 2]
    for role in ("trainer", "critic"):
        assert [step[f"{role}/learning_rate"] for step in prompt_steps] == pytest.approx(
            [4.0e-4, 2.0e-4, 0.0]
        )
    assert [step["data/epoch"] for step in prompt_steps] == [0, 1, 2]  # completed epochs
    assert "step 6/6" in run.output and "step 3/3" in run.output
    table = CliRunner().invoke(app, ["list", "--runs-dir", str(run.runs)]).stdout
    assert [line.split()[:3] for line in table.splitlines()[1:]] == [
        ["prompts", "Succeeded", "3/3"],
        ["rows", "Succeeded", "6/6"],
    ]
