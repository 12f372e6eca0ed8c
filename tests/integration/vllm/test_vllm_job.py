"""Jobs whose rollout workers generate with vLLM, in its own environment, beside roles in the services'."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from support.running import RunningJobs, alive, children, left_running
from support.tiny_jobs import online_job, write_jobs
from support.vllm_environment import ABSENT, VLLM_PYTHON
from support.vllm_jobs import VLLM_MODEL, VLLM_ROLLOUT

pytestmark = [pytest.mark.timeout(600), pytest.mark.skipif(bool(ABSENT), reason=ABSENT)]

STEPS = 8
GRPO = {"grpo": {"promptsPerStep": 8, "samplesPerPrompt": 4}}


def vllm_job(folder: Path, name: str, algorithm: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """Return a job of STEPS steps whose rollout workers use vLLM."""
    return online_job(
        folder, name, algorithm, maxSteps=STEPS, policy={"model": VLLM_MODEL}, rollout=VLLM_ROLLOUT, **spec
    )


def engine_core(worker: int) -> int:
    """Return the process of vLLM's engine, a child of the worker."""
    [engine] = [pid for pid in children(worker) if b"EngineCore" in command(pid)]
    return engine


def command(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def check_result(run: RunningJobs, job: str) -> None:
    """Check that each step was trained once, and that the engine's log-probabilities equal the trainer's."""
    lines = [line for line in run.metrics(job) if "seconds/step" in line]
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    assert max(line["rollout/logprob_gap_max"] for line in lines) < 1e-4
    assert max(line["refit/canary_gap"] for line in lines) < 1e-4


def test_grpo(tmp_path: Path) -> None:
    """The worker runs in vLLM's environment; nothing is left of it."""
    job = vllm_job(tmp_path, "on-vllm", GRPO)
    with RunningJobs(write_jobs(tmp_path, job), tmp_path / "runs") as run:
        run.wait_for_step("on-vllm", 1, timeout=300)
        worker = run.processes("on-vllm")["rollout-0"]["pid"]
        assert command(worker).startswith(os.fsencode(VLLM_PYTHON))
        assert run.end(timeout=300) == 0, run.output
        check_result(run, "on-vllm")
    assert not left_running(tmp_path)


@pytest.mark.full
def test_a_killed_engine_costs_one_restart_of_its_worker(tmp_path: Path) -> None:
    job = vllm_job(tmp_path, "on-vllm", GRPO)
    with RunningJobs(write_jobs(tmp_path, job), tmp_path / "runs") as run:
        run.wait_for_step("on-vllm", 2, timeout=300)
        worker = run.processes("on-vllm")["rollout-0"]["pid"]
        engine = engine_core(worker)
        os.kill(engine, signal.SIGKILL)
        assert run.end(timeout=300) == 0, run.output
        check_result(run, "on-vllm")
        assert "starting rollout-0 again" in run.output and "(restart 1 of 10" in run.output
        assert "(restart 2 of 10" not in run.output
        assert not alive([worker, engine])
    assert not left_running(tmp_path)


@pytest.mark.full
def test_ppo(tmp_path: Path) -> None:
    algorithm = {"ppo": {"promptsPerStep": 8, "samplesPerPrompt": 2, "minibatchSequences": 16}}
    job = vllm_job(tmp_path, "ppo-on-vllm", algorithm, critic={"model": VLLM_MODEL})
    with RunningJobs(write_jobs(tmp_path, job), tmp_path / "runs") as run:
        assert run.end(timeout=300) == 0, run.output
        check_result(run, "ppo-on-vllm")
    assert not left_running(tmp_path)
