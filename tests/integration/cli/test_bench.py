"""`kubealign bench` sizes the rollout workers of a tiny job."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kubealign.bench.measurements import SizingMeasurements, StepShape, compute_sizing
from support.running import KUBEALIGN, RunningJobs
from support.tiny_jobs import FROM_CONFIG, online_job, write_jobs

pytestmark = pytest.mark.timeout(240)

PPO = {"ppo": {"promptsPerStep": 4, "samplesPerPrompt": 3, "minibatchSequences": 6, "maxStaleness": 1}}


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(KUBEALIGN), "bench", *arguments],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def predicted_again(report: dict[str, Any], shape: StepShape) -> list[float]:
    """Return the step times predicted from the command's own measurements."""
    figures = SizingMeasurements.model_validate(report["figures"])
    return [row.step for row in compute_sizing(figures, shape, len(report["predicted"])).rows]


def test_components_of_a_job_are_measured(tmp_path: Path) -> None:
    job = online_job(tmp_path, "sized", PPO, critic={"model": FROM_CONFIG})
    job["spec"]["rollout"] = {
        "engine": {"torch": {"maxSequences": 8}},
        "sampling": {"maxTokens": 12},
        "refit": {"inFlight": "Continue"},
    }
    file = write_jobs(tmp_path, job)
    done = bench(str(file), "--seconds", "2", "--mean-tokens", "5", "--max-workers", "3", "-o", "json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    figures = report["figures"]
    running = [n for n, _ in figures["passes"]]
    # The engine has room for 8 of up to 24 sequences in flight.
    assert running[0] == 1 and running[-1] == 8 and running == sorted(running)
    assert all(seconds > 0 for _, seconds in figures["passes"]) and figures["prompt_tokens_per_second"] > 0
    assert (figures["mean_length"], figures["longest_length"], figures["prompt_tokens"]) == (5.0, 12, 2.0)
    # Critic values and old log-probabilities are computed before the optimiser steps.
    assert figures["train_seconds"] > 0 and figures["before_seconds"] > 0 and figures["refit_seconds"] > 0
    # Two layers of width 32 and 12 tokens are about 20,000 weights of 4 bytes.
    assert 40_000 < figures["refit_bytes"] < 200_000
    assert [row["workers"] for row in report["predicted"]] == [1, 2, 3]
    assert [row["stepSeconds"] for row in report["predicted"]] == pytest.approx(
        predicted_again(report, StepShape(4, 3, 8, 1, True, 1))
    )
    assert report["maxStaleness"] == 1 and 1 <= report["workers"] <= 3 and report["sentence"]
    assert not list(tmp_path.glob("runs*"))


def test_recorded_run_predicts_more_workers(tmp_path: Path) -> None:
    file = write_jobs(tmp_path, online_job(tmp_path, "ran", {"rloo": {"promptsPerStep": 8}}, maxSteps=6))
    with RunningJobs(file, tmp_path / "runs", "--no-dashboard") as run:
        assert run.end(150) == 0, run.output
        steps = list(run.steps("ran").values())[1:]
    done = bench(str(file), "--from-run", str(tmp_path / "runs" / "ran"), "-o", "json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    train = [step["seconds/train"] for step in steps]
    assert report["figures"]["train_seconds"] == pytest.approx(sum(train) / len(train))
    assert report["figures"]["source"].startswith("5 steps of ")
    table = bench(str(file), "--from-run", str(tmp_path / "runs" / "ran"))
    assert table.returncode == 0 and report["sentence"] in table.stdout
    assert "WORKERS   GENERATE   STEP" in table.stdout and "rollout.replicas" in table.stdout
