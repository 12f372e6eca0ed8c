"""Jobs in real pods whose rollout workers generate with vLLM, in its own environment of the image."""

import json
import os
import signal
from typing import Any

import pytest

from cluster.support.inside_pods import pids
from cluster.support.paced_jobs import (
    PROMPTS_PER_STEP,
    assert_each_prompt_once,
    container,
    paced_job,
    prepare,
    set_pace,
)
from cluster.support.tenant import Tenant
from support.vllm_environment import ABSENT
from support.vllm_jobs import VLLM_MODEL, VLLM_ROLLOUT

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(ABSENT), reason=ABSENT),
    # A start of vLLM takes a minute beside other tests; the same engine runs in tests/integration/vllm.
    pytest.mark.full,
]

_STEPS = 4
_START_SECONDS = 400.0
#: Largest difference of the engine's log-probabilities from the trainer's.
_TOLERANCE = 1e-4


def vllm_job(name: str, **spec: Any) -> dict[str, Any]:
    """Return a job of _STEPS steps."""
    memory = {"requests": {"cpu": "50m", "memory": "1Gi"}, "limits": {"memory": "5Gi"}}
    rollout = VLLM_ROLLOUT | {"podTemplate": container(resources=memory)}
    return paced_job(name, _STEPS, policy={"model": VLLM_MODEL}, rollout=rollout, **spec)


def assert_logprobs_are_the_trainers(tenant: Tenant, job: str) -> None:
    lines = map(json.loads, (tenant.run_folder(job) / "metrics.jsonl").read_text().splitlines())
    gaps = [line["rollout/logprob_gap_max"] for line in lines if "seconds/step" in line]
    assert len(gaps) == _STEPS and max(gaps) < _TOLERANCE


def test_grpo_whose_engine_is_killed(tenant: Tenant) -> None:
    """The worker starts again, and each prompt is trained once."""
    prepare(tenant, _STEPS)
    groups = {"promptsPerStep": PROMPTS_PER_STEP, "samplesPerPrompt": 4}
    tenant.apply(vllm_job("grpo", algorithm={"grpo": groups}))
    tenant.until_beyond("grpo", 0, "at the start", _START_SECONDS)
    [engine] = pids(tenant.pods()["grpo-rollout-0-0"], "VLLM::EngineCore")
    os.kill(engine, signal.SIGKILL)
    set_pace(tenant, 0.0)
    tenant.until_phase("grpo", "Succeeded", _START_SECONDS)
    assert_each_prompt_once(tenant, "grpo", _STEPS)
    assert_logprobs_are_the_trainers(tenant, "grpo")


def test_ppo(tenant: Tenant) -> None:
    prepare(tenant, _STEPS)
    set_pace(tenant, 0.0)
    groups = {"promptsPerStep": PROMPTS_PER_STEP, "samplesPerPrompt": 2}
    tenant.apply(vllm_job("ppo", algorithm={"ppo": groups}, critic={"model": VLLM_MODEL}))
    tenant.until_phase("ppo", "Succeeded", 2 * _START_SECONDS)
    assert_each_prompt_once(tenant, "ppo", _STEPS)
    assert_logprobs_are_the_trainers(tenant, "ppo")
