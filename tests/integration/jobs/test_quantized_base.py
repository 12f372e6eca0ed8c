"""A GRPO job above a base in NF4 through the real command: engine and trainer agree on the weights, the
reference is the quantised base, and a killed trainer resumes.
"""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from kubealign_services.data.prepared import load_prepared
from support.running import RunningJobs
from support.tiny_jobs import ARCHITECTURE, FROM_CONFIG, online_job, write_jobs

pytestmark = pytest.mark.timeout(240)

STEPS = 8
WIDE = ARCHITECTURE | {"hidden_size": 64, "intermediate_size": 128, "initializer_range": 0.1}


def test_a_job_samples_and_trains_the_quantised_model(tmp_path: Path) -> None:
    job = online_job(
        tmp_path,
        "quantised",
        {"grpo": {"promptsPerStep": 8, "samplesPerPrompt": 4, "epochsPerStep": 2}},
        maxSteps=STEPS,
        policy={"model": {"config": FROM_CONFIG["config"] | {"architecture": WIDE}}},
        trainer={
            "optimizer": {"adamW": {"learningRate": 1.0e-2}},
            "lora": {"rank": 4, "quantization": {"nf4": {}}},
        },
        checkpoint={"everySteps": 2},
    )
    with RunningJobs(write_jobs(tmp_path, job), tmp_path / "runs", "--no-dashboard") as run:
        run.wait_for_step("quantised", 2)
        run.kill("quantised", "trainer-0")
        assert run.end(200) == 0, run.output[-4000:]
        metrics = run.steps("quantised")
    folder = tmp_path / "runs" / "quantised"
    for step in range(1, STEPS + 1):
        assert metrics[step]["rollout/logprob_gap_max"] < 1e-3
        assert metrics[step]["refit/canary_gap"] < 1e-4
    # The adapter alone is transferred: much less than one matrix of each kind.
    assert metrics[STEPS]["refit/bytes"] < 80_000
    base = AutoModelForCausalLM.from_pretrained(load_prepared(folder).model_folder("policy"))
    result = AutoModelForCausalLM.from_pretrained(folder / "result")
    assert (folder / "result" / "adapter" / "adapter_model.safetensors").is_file()
    ours, theirs = result.state_dict(), base.state_dict()
    changed = {name for name, weight in ours.items() if not torch.equal(weight, theirs[name])}
    assert len(changed) == 7 * 2 and all("_proj" in name for name in changed)
    gap = max(float((ours[name] - theirs[name]).abs().max()) for name in changed)
    # The levels of NF4 are at most 0.3 of a block's largest weight apart.
    assert 0.01 < gap < 0.5
