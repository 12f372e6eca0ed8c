"""Jobs that are rejected before any of their processes starts, and a job whose metric is never measured."""

import subprocess
from pathlib import Path
from signal import SIGINT

import pytest

from support.running import KUBEALIGN, RunningJobs, left_running
from support.tiny_jobs import sft_job, write_jobs

pytestmark = pytest.mark.timeout(240)


def refused(*arguments: str | Path, code: int = 3) -> str:
    """Run `kubealign run`, which must exit at once with this code, and return its error output. Code 3 means
    an invalid job."""
    done = subprocess.run(
        [KUBEALIGN, "run", *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == code, done.stdout
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.stderr


def test_every_mistake_of_a_file_is_told_at_once(tmp_path: Path) -> None:
    job = sft_job(tmp_path, "bad", maxSteps=0, polcy={})
    job["spec"]["algorithm"] = {"pppo": {}}
    file = write_jobs(tmp_path, job)
    output = refused(file, "--runs-dir", tmp_path / "runs", "--set", "spec.seeds=2")
    assert f"{file}:6: bad: spec.maxSteps: must be at least 1 (it holds 0)" in output
    assert "bad: spec.algorithm.pppo: is no field here: did you mean ppo?" in output
    assert "bad: spec.polcy: is no field here: did you mean policy?" in output
    assert "bad: spec.seeds: is no field here: did you mean seed?" in output
    assert "(it holds 2, from --set spec.seeds=2)" in output
    assert len(output.splitlines()) == 4
    assert not (tmp_path / "runs").exists()


def test_another_jobs_result_that_does_not_exist(tmp_path: Path) -> None:
    file = write_jobs(tmp_path, sft_job(tmp_path, "bad", policy={"model": {"job": {"name": "sft"}}}))
    output = refused(file, "--runs-dir", tmp_path / "runs")
    assert "bad: spec.policy.model.job.name: is not a finished job and not in this file" in output
    assert "run sft first, or add it" in output


def test_early_stopping_by_a_metric_that_is_not_measured(tmp_path: Path, failed) -> None:
    job = sft_job(tmp_path, "bad")
    job["spec"]["validation"] = {
        "data": job["spec"]["data"],
        "everySteps": 2,
        "earlyStopping": {"metric": "val/exact", "target": {"atLeast": 0.5}},
    }
    output = failed(job)
    assert "spec.validation.earlyStopping.metric: val/exact is not measured; there are val/loss" in output


def test_a_folder_that_is_in_use_or_holds_another_job(tmp_path: Path) -> None:
    file = write_jobs(tmp_path, sft_job(tmp_path, "bad", maxSteps=100_000))
    runs = tmp_path / "runs"
    with RunningJobs(file, runs) as run:
        run.wait_for_step("bad", 1)
        output = refused(file, "--runs-dir", runs, code=1)
        assert f"{runs / 'bad'} is in use by another kubealign run (process {run.pids('bad')[0]})" in output
        run.send(SIGINT)
        assert run.end(60) == 130, run.output
        assert left_running(tmp_path) == {}
        checkpoints = sorted(path.name for path in (runs / "bad" / "commits").iterdir())
        output = refused(file, "--runs-dir", runs, "--set", "spec.seed=7", code=1)
        assert f"{runs / 'bad'} holds a run of another bad; it differs in spec.seed (1, now 7)" in output
        assert "Give the job another name or --runs-dir, or delete that run" in output
        assert sorted(path.name for path in (runs / "bad" / "commits").iterdir()) == checkpoints != []
