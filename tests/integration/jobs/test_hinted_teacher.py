"""Self-distillation with a hint through the real command, with the driver killed: each recorded batch has the
log-probabilities of the initial weights after the hinted prompts."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from kubealign.replay.record import list_recorded_steps, read_batch, read_record
from kubealign.v1 import batch_pb2
from kubealign_services.batch.codec import decode
from kubealign_services.data.prepared import load_prepared, row_index
from support.running import RunningJobs
from support.tiny_jobs import online_job, write_jobs

pytestmark = pytest.mark.timeout(240)


@pytest.mark.parametrize("placement", ["Own", pytest.param("WithTrainer", marks=pytest.mark.full)])
def test_recorded_batches_have_the_teacher_s_log_probabilities(tmp_path: Path, placement: str) -> None:
    path = tmp_path / "sums.jsonl"
    rows = [{"prompt": f"{a}+{b}=", "answer": a + b} for a in range(5) for b in range(4)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    algorithm = {"promptsPerStep": 4, "samplesPerPrompt": 2, "hint": {"template": "[{answer}] {prompt}"}}
    job = online_job(
        tmp_path,
        "opsd",
        {"onPolicyDistillation": algorithm},
        maxSteps=4,
        data={"prompts": {"source": {"path": str(path)}}},
        reference={"placement": placement},
        rewards=[],
        checkpoint={"everySteps": 2, "recordBatches": True},
    )
    with RunningJobs(write_jobs(tmp_path, job), tmp_path / "runs", "--no-dashboard") as run:
        run.wait_for_step("opsd", 2)
        run.kill("opsd", "driver")
        assert run.end(150) == 0, run.output[-4000:]
    folder = tmp_path / "runs" / "opsd"
    prepared = load_prepared(folder)
    model = AutoModelForCausalLM.from_pretrained(prepared.model_folder("policy"), dtype=torch.float32)
    assert list_recorded_steps(folder / "batches") == [1, 2, 3, 4]
    for step in range(1, 5):
        record = read_record(folder / "batches", step)
        columns = read_batch(folder / "batches", record)
        batch = decode(
            batch_pb2.PackedBatch(sample_ids=record.sample_ids, columns=columns, digest=record.digest)
        )
        for index, name in enumerate(batch.sample_ids):
            row, sequence = prepared.train[row_index(name)], batch.select([index])
            hinted = row.teacher_prompt_tokens
            assert hinted is not None and hinted != row.prompt_tokens
            response = sequence.tokens[len(row.prompt_tokens) :].long()
            with torch.no_grad():
                logits = model(torch.cat([torch.tensor(hinted), response])[None]).logits[0]
            expected = logits.log_softmax(-1)[len(hinted) - 1 : -1].gather(1, response[:, None])[:, 0]
            actual = sequence.token("reference_logprobs")
            assert actual[: len(row.prompt_tokens)].eq(0).all()
            torch.testing.assert_close(actual[len(row.prompt_tokens) :], expected, atol=1e-5, rtol=0)
