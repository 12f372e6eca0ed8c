"""Sharded models in real pods: Megatron training on four ranks in two pods, generation by a Triton server
that is killed, a rollout worker of two pods and a reference of two pods."""

import json
import os
import signal
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from cluster.support.inside_pods import pids
from cluster.support.paced_jobs import PROMPTS_PER_STEP, assert_each_prompt_once, paced_job, prepare, set_pace
from cluster.support.tenant import Tenant
from kubealign_services.generation.triton_engine.server_install import TritonInstallation
from kubealign_services.runtime.process.failures import PermanentFailure

try:
    TritonInstallation.find()
    ABSENT = ""
except PermanentFailure as failure:
    ABSENT = str(failure)

pytestmark = pytest.mark.timeout(900)

_START_SECONDS = 400.0
_STEPS = 6


def steps_of(tenant: Tenant, job: str) -> list[dict[str, Any]]:
    """Return the metrics of each step, in the order of the file."""
    lines = (tenant.run_folder(job) / "metrics.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if "seconds/step" in line]


def assert_loads(tenant: Tenant, job: str) -> None:
    folder = tenant.folder / tenant.status(job)["result"]["path"]
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        logits = model(**AutoTokenizer.from_pretrained(folder)("ab", return_tensors="pt")).logits
    assert logits.isfinite().all()


def assert_streamed(steps: list[dict[str, Any]], count: int) -> None:
    """Assert that every step occurs once, with weights sent by stream: pods share no memory."""
    assert [line["step"] for line in steps] == list(range(1, count + 1))
    assert {line["refit/stream_workers"] for line in steps} == {1.0}
    assert {line["refit/shared_memory_workers"] for line in steps} == {0.0}


def lose_server(tenant: Tenant, job: str) -> None:
    """Kill the Triton server in the worker's pod, and wait until another runs in that pod."""
    pod = tenant.pods()[f"{job}-rollout-0-0"]
    [before] = pids(pod, "tritonserver")
    os.kill(before, signal.SIGKILL)
    tenant.until(lambda: pids(pod, "tritonserver") not in ([], [before]), "another Triton server", 180)


@pytest.mark.skipif(bool(ABSENT), reason=ABSENT)
@pytest.mark.full
def test_megatron_trains_in_two_pods_and_a_killed_triton_server_costs_no_pod(tenant: Tenant) -> None:
    prepare(tenant, _STEPS)
    set_pace(tenant, 0.0)
    # One sequence at a time: nearly all of a step is generation, in which the server is killed.
    engine = {"triton": {"maxSequences": 1, "startTimeoutSeconds": _START_SECONDS}}
    groups = {
        "promptsPerStep": PROMPTS_PER_STEP,
        "samplesPerPrompt": 32,
        "kl": {"fixed": {"coefficient": 0.0}},
    }
    job = paced_job(
        "pieces",
        _STEPS,
        algorithm={"rloo": groups},
        trainer={
            "ranks": 4,
            "processesPerPod": 2,
            "backend": {"megatron": {"tensorParallel": 2}},
            "optimizer": {"adamW": {"learningRate": 1.0e-3}},
        },
        rollout={"engine": engine, "sampling": {"maxTokens": 16}},
    )
    tenant.apply(job)
    tenant.until_beyond("pieces", 0, "at the start", _START_SECONDS)
    pods = tenant.pods()
    trainers = sorted(name for name in pods if "trainer" in name)
    assert trainers == ["pieces-trainer-0-0", "pieces-trainer-2-0"]
    lose_server(tenant, "pieces")
    tenant.until_beyond("pieces", tenant.step("pieces"), "after the server was killed", _START_SECONDS)
    assert tenant.pods() == pods, "no pod was started again"
    log = tenant.kubectl("logs", "pieces-rollout-0-0")
    assert "Triton server is started again" in log and "work was given back" in log
    tenant.until_phase("pieces", "Succeeded", 300)
    assert not tenant.status("pieces").get("restarts")
    assert_each_prompt_once(tenant, "pieces", _STEPS)
    assert_streamed(steps_of(tenant, "pieces"), _STEPS)
    assert_loads(tenant, "pieces")


@pytest.mark.full
def test_two_pods_are_one_worker(tenant: Tenant) -> None:
    """The pods connect, shard the model, and each receives its shard of the weights from the trainer."""
    steps = 3
    prepare(tenant, steps)
    set_pace(tenant, 0.0)
    engine = {"torch": {"maxSequences": 64, "tensorParallel": 2}}
    tenant.apply(paced_job("shared", steps, rollout={"engine": engine, "sampling": {"maxTokens": 4}}))
    pods = {f"shared-{name}-0" for name in ("rollout-0", "rollout-0-r1")}
    tenant.until(lambda: pods <= set(tenant.pods()), "both pods of the worker")
    tenant.until_phase("shared", "Succeeded", _START_SECONDS)
    assert not tenant.status("shared").get("restarts")
    assert_each_prompt_once(tenant, "shared", steps)
    assert_streamed(steps_of(tenant, "shared"), steps)


@pytest.mark.full
def test_two_pods_are_one_reference(tenant: Tenant) -> None:
    """The pods connect and shard the model; every sample of the job gets its score."""
    steps = 3
    prepare(tenant, steps)
    set_pace(tenant, 0.0)
    groups = {
        "promptsPerStep": PROMPTS_PER_STEP,
        "samplesPerPrompt": 2,
        "kl": {"fixed": {"coefficient": 0.05}},
    }
    tenant.apply(paced_job("scored", steps, algorithm={"rloo": groups}, reference={"ranks": 2}))
    pods = {f"scored-{name}-0" for name in ("reference-0", "reference-0-r1")}
    tenant.until(lambda: pods <= set(tenant.pods()), "both pods of the reference")
    tenant.until_phase("scored", "Succeeded", _START_SECONDS)
    assert not tenant.status("scored").get("restarts")
    assert_each_prompt_once(tenant, "scored", steps)
    assert [line["step"] for line in steps_of(tenant, "scored")] == list(range(1, steps + 1))
