"""XPO through the real command: after the policy has moved, every second response is still a sample of its
initial weights, by plain transformers, despite a killed driver and samples that are older than the weights.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from kubealign.replay.record import list_recorded_steps, read_batch, read_record
from kubealign.v1 import batch_pb2
from kubealign_services.batch.codec import decode
from kubealign_services.batch.packed import Batch
from kubealign_services.data.prepared import load_prepared
from support.running import RunningJobs
from support.tiny_jobs import online_job, write_jobs

pytestmark = pytest.mark.timeout(240)

PROMPTS, STEPS = 4, 6


def recorded_batch(run: Path, step: int) -> Batch:
    record = read_record(run / "batches", step)
    columns = read_batch(run / "batches", record)
    return decode(batch_pb2.PackedBatch(sample_ids=record.sample_ids, columns=columns, digest=record.digest))


def distance_to_model(model: Any, sequence: Batch) -> float:
    """Return the largest difference, in nats, of engine_logprobs and the model's on the response tokens."""
    tokens, mask = sequence.tokens.long(), sequence.token("loss_mask").bool()
    with torch.no_grad():
        logprobs = model(tokens[None]).logits[0].log_softmax(-1)
    expected = logprobs[:-1].gather(1, tokens[1:, None])[:, 0]
    return float((sequence.token("engine_logprobs")[1:] - expected)[mask[1:]].abs().max())


@pytest.mark.parametrize("trainer", [{}, pytest.param({"lora": {"rank": 4}}, marks=pytest.mark.full)])
def test_the_reference_stays_where_the_policy_began(tmp_path: Path, trainer: dict[str, Any]) -> None:
    job = online_job(
        tmp_path,
        "xpo",
        {"xpo": {"promptsPerStep": PROMPTS, "alpha": 0.01, "maxStaleness": 1}},
        maxSteps=STEPS,
        trainer={"optimizer": {"adamW": {"learningRate": 3.0e-2}}} | trainer,
        checkpoint={"everySteps": 2, "recordBatches": True},
    )
    with RunningJobs(write_jobs(tmp_path, job), tmp_path / "runs", "--no-dashboard") as run:
        run.wait_for_step("xpo", 2)
        run.kill("xpo", "driver")
        assert run.end(200) == 0, run.output[-4000:]
        metrics = run.steps("xpo")
    folder = tmp_path / "runs" / "xpo"
    model = AutoModelForCausalLM.from_pretrained(
        load_prepared(folder).model_folder("policy"), dtype=torch.float32
    )
    assert list_recorded_steps(folder / "batches") == list(range(1, STEPS + 1))
    moved = 0.0
    names: list[str] = []
    for step in range(1, STEPS + 1):
        batch = recorded_batch(folder, step)
        names += batch.sample_ids
        assert batch.sequence("companion").tolist() == [0, 1] * PROMPTS
        for index in range(0, 2 * PROMPTS, 2):
            response, reference = batch.select([index]), batch.select([index + 1])
            assert distance_to_model(model, reference) < 1e-4
            assert reference.token("weight_version").eq(-1).all()
            versions = response.token("weight_version")[response.token("loss_mask").bool()]
            assert versions.min() >= step - 2
            if step == STEPS:
                moved = max(moved, distance_to_model(model, response))
        assert metrics[step]["rollout/reference_gap_mean"] < 1e-4
        assert metrics[step]["rollout/staleness_max"] <= 1
        assert metrics[step].get("rollout/logprob_gap_max", 0.0) < 1e-3
    assert moved > 0.1
    # Each sample of each prompt was trained on once.
    assert len(set(names)) == len(names) == 2 * PROMPTS * STEPS
