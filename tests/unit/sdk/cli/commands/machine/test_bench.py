"""`kubealign bench` refuses jobs that it cannot size, before anything is started."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from support.bad_specs import whole_job
from support.tiny_jobs import online_job, sft_job, write_jobs

Run = Callable[..., Result]


def test_job_without_rollout_is_refused(run: Run, tmp_path: Path) -> None:
    done = run("bench", str(write_jobs(tmp_path, sft_job(tmp_path, "rows"))))
    assert done.exit_code == 2 and done.stderr.startswith("rows: sft does not sample in its steps: ")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"rollout": {"engine": {"torch": {"tensorParallel": 2}}}},
            "spec.rollout.engine.torch, as it is set,",
        ),
        ({"rollout": {"engine": {"vllm": {}}}}, "spec.rollout.engine.vllm, as it is set,"),
        ({"rollout": {"engine": {"tensorrtLLM": {}}}}, "spec.rollout.engine.tensorrtLLM, as it is set,"),
        ({"trainer": {"backend": {"megatron": {}}}}, "spec.trainer.backend.megatron cannot be measured"),
    ],
)
def test_multi_process_parts_are_refused(
    run: Run, tmp_path: Path, changes: dict[str, Any], says: str
) -> None:
    job = online_job(tmp_path, "sampled", {"rloo": {}}, **changes)
    done = run("bench", str(write_jobs(tmp_path, job)))
    assert done.exit_code == 2 and done.stderr.startswith(says) and "--from-run" in done.stderr


def test_run_with_too_few_steps_is_refused(run: Run, tmp_path: Path) -> None:
    file = str(write_jobs(tmp_path, online_job(tmp_path, "sampled", {"rloo": {}})))
    done = run("bench", file, "--from-run", str(tmp_path / "none"))
    assert (done.exit_code, done.stderr) == (2, f"{tmp_path / 'none'} holds no run\n")
    ran = tmp_path / "ran"
    ran.mkdir()
    (ran / "job.json").write_text(json.dumps(whole_job("rloo")))
    done = run("bench", file, "--from-run", str(ran))
    assert (done.exit_code, done.stderr) == (2, f"{ran}: 0 steps are too few: at least 4 are needed\n")


def test_conflicting_options_are_refused(run: Run, tmp_path: Path) -> None:
    file = str(write_jobs(tmp_path, online_job(tmp_path, "sampled", {"rloo": {}})))
    assert run("bench", file, "--from-run", str(tmp_path), "--steps", "3").exit_code == 2
    assert run("bench", "--mean-tokens", "3").exit_code == 2
    done = run("bench", file, "--mean-tokens", "9")
    says = "--mean-tokens 9: it may be 1 to 4, spec.rollout.sampling.maxTokens\n"
    assert (done.exit_code, done.stderr) == (2, says)
