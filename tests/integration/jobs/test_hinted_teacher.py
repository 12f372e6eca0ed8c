"""Self-distillation with a hint through the real command: each recorded batch has what plain torch computes
with the teacher's weights after the hinted prompts."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from kubealign.replay.record import list_recorded_steps, read_batch, read_record
from kubealign.v1 import batch_pb2
from kubealign_services.batch.codec import decode
from kubealign_services.batch.packed import Batch
from kubealign_services.data.prepared import load_prepared, row_index
from support.running import RunningJobs
from support.tiny_jobs import FROM_CONFIG, online_job, write_jobs

pytestmark = pytest.mark.timeout(240)


def hinted_job(folder: Path, algorithm: dict[str, Any], **spec: Any) -> Path:
    path = folder / "sums.jsonl"
    rows = [{"prompt": f"{a}+{b}=", "answer": a + b} for a in range(5) for b in range(4)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    entry = {"promptsPerStep": 4, "samplesPerPrompt": 2, "hint": {"template": "[{answer}] {prompt}"}}
    job = online_job(
        folder,
        "opsd",
        {"onPolicyDistillation": entry | algorithm},
        maxSteps=4,
        data={"prompts": {"source": {"path": str(path)}}},
        rewards=[],
        checkpoint={"everySteps": 2, "recordBatches": True},
        **spec,
    )
    return write_jobs(folder, job)


def recorded_responses(run: Path) -> Iterator[tuple[Batch, Tensor, int]]:
    """Yield each recorded sequence, the teacher's logits [R, V] of its R response tokens, and the number of
    its prompt's tokens."""
    prepared = load_prepared(run)
    model = AutoModelForCausalLM.from_pretrained(prepared.model_folder("policy"), dtype=torch.float32)
    assert list_recorded_steps(run / "batches") == [1, 2, 3, 4]
    for step in range(1, 5):
        record = read_record(run / "batches", step)
        columns = read_batch(run / "batches", record)
        batch = decode(
            batch_pb2.PackedBatch(sample_ids=record.sample_ids, columns=columns, digest=record.digest)
        )
        for index, name in enumerate(batch.sample_ids):
            row, sequence = prepared.train[row_index(name)], batch.select([index])
            hinted, prompt = row.teacher_prompt_tokens, len(row.prompt_tokens)
            assert hinted is not None and hinted != row.prompt_tokens
            response = sequence.tokens[prompt:].long()
            with torch.no_grad():
                logits = model(torch.cat([torch.tensor(hinted), response])[None]).logits[0]
            yield sequence, logits[len(hinted) - 1 : -1], prompt


@pytest.mark.parametrize("placement", ["Own", pytest.param("WithTrainer", marks=pytest.mark.full)])
def test_the_teacher_s_log_probabilities_despite_a_killed_driver(tmp_path: Path, placement: str) -> None:
    jobs = hinted_job(tmp_path, {}, reference={"placement": placement})
    with RunningJobs(jobs, tmp_path / "runs", "--no-dashboard") as run:
        run.wait_for_step("opsd", 2)
        run.kill("opsd", "driver")
        assert run.end(150) == 0, run.output[-4000:]
    for sequence, logits, prompt in recorded_responses(tmp_path / "runs" / "opsd"):
        actual, tokens = sequence.token("reference_logprobs"), sequence.tokens[prompt:].long()
        expected = logits.log_softmax(-1).gather(1, tokens[:, None])[:, 0]
        assert actual[:prompt].eq(0).all()
        torch.testing.assert_close(actual[prompt:], expected, atol=1e-5, rtol=0)


def test_the_teacher_s_candidates(tmp_path: Path) -> None:
    """A distribution at another temperature than that of sampling, in several updates per step."""
    distribution = {"candidates": 3, "temperature": 2.0, "divergence": "JensenShannon", "beta": 0.3}
    algorithm = {"distribution": distribution, "minibatchSequences": 4}
    with RunningJobs(
        hinted_job(tmp_path, algorithm, teacher={"model": FROM_CONFIG}), tmp_path / "runs", "--no-dashboard"
    ) as run:
        assert run.end(150) == 0, run.output[-4000:]
        metrics = run.metrics("opsd")
    for sequence, logits, prompt in recorded_responses(tmp_path / "runs" / "opsd"):
        expected = (logits / 2.0).log_softmax(-1)
        candidates = sequence.token("candidates")
        assert candidates.dtype == torch.int64 and candidates[:prompt].eq(0).all()
        torch.testing.assert_close(
            sequence.token("candidate_logprobs")[prompt:], expected.topk(3, -1).values, atol=1e-5, rtol=0
        )
        torch.testing.assert_close(
            expected.gather(1, candidates[prompt:]), expected.topk(3, -1).values, atol=1e-5, rtol=0
        )
        assert sequence.scalars["candidates_temperature"] == 2.0
        assert "reference_logprobs" not in sequence.token_columns
    assert all(line["distillation/kl"] > 0 and line["seconds/score/teacher"] > 0 for line in metrics)
