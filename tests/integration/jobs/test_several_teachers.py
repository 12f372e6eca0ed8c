"""On-policy distillation from several teachers through the real command: each recorded sample has what plain
torch computes with the weights of its own teacher."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from kubealign_services.batch.packed import Batch
from kubealign_services.data.prepared import load_prepared, row_index
from support.recorded_batches import recorded_batches
from support.running import RunningJobs
from support.tiny_jobs import ARCHITECTURE, FROM_CONFIG, online_job, write_jobs

pytestmark = pytest.mark.timeout(240)

STEPS = 3
#: Source of prompts -> its teacher. The first letter of a prompt tells its source.
TEACHER_OF = {"sums": "math", "poems": "verse", "digits": "math"}


def routed_job(folder: Path, algorithm: dict[str, Any], **spec: Any) -> Path:
    """Write a job with two teachers of different sizes and three sources."""
    mixture = []
    for source, teacher in TEACHER_OF.items():
        path = folder / f"{source}.jsonl"
        rows = [{"prompt": f"{source[0]}{letter}"} for letter in "abcdefgh"]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        mixture.append({"name": source, "source": {"path": str(path)}, "teacher": teacher})

    def model(layers: int) -> dict[str, Any]:
        architecture = ARCHITECTURE | {"num_hidden_layers": layers}
        return {"config": FROM_CONFIG["config"] | {"architecture": architecture}}

    job = online_job(
        folder,
        "routed",
        {"onPolicyDistillation": {"promptsPerStep": 6, "samplesPerPrompt": 2} | algorithm},
        maxSteps=STEPS,
        data={"prompts": {"mixture": mixture, "shuffle": False}},
        teachers=[
            {"name": "math", "model": model(1)},
            {"name": "verse", "model": model(3)},
        ],
        rewards=[],
        checkpoint={"everySteps": 1, "recordBatches": True},
        **spec,
    )
    return write_jobs(folder, job)


def compared_responses(run: Path) -> Iterator[tuple[Batch, int, Tensor, Tensor]]:
    """Yield each recorded sequence, the number of its prompt's tokens, and the logits [R, V] of its R
    response tokens from its own teacher and from the other one. Each step has samples of both teachers."""
    prepared = load_prepared(run)
    models = {
        name: AutoModelForCausalLM.from_pretrained(
            prepared.model_folder(f"teacher-{name}"), dtype=torch.float32
        )
        for name in ("math", "verse")
    }
    for batch in recorded_batches(run, STEPS):
        teachers = []
        for index, name in enumerate(batch.sample_ids):
            row = prepared.train[row_index(name)]
            own = TEACHER_OF[row.columns["source"]]
            teachers.append(own)
            assert row.columns["source"][0] == row.prompt_text[0]
            sequence, prompt = batch.select([index]), len(row.prompt_tokens)
            # A teacher reads the hinted prompt, where the job has a hint.
            read = torch.tensor(row.teacher_prompt_tokens or row.prompt_tokens)
            tokens = torch.cat([read, sequence.tokens[prompt:].long()])[None]
            with torch.no_grad():
                logits = {key: model(tokens).logits[0, len(read) - 1 : -1] for key, model in models.items()}
            (other,) = models.keys() - {own}
            yield sequence, prompt, logits[own], logits[other]
        assert set(teachers) == {"math", "verse"}


def test_each_token_has_the_log_probability_of_its_own_teacher(tmp_path: Path) -> None:
    """Despite a killed driver, whose successor requests the unfinished samples again."""
    jobs = routed_job(tmp_path, {"minibatchSequences": 4})
    with RunningJobs(jobs, tmp_path / "runs", "--no-dashboard") as run:
        run.wait_for_step("routed", 1)
        run.kill("routed", "driver")
        assert run.end(150) == 0, run.output[-4000:]
        metrics = run.metrics("routed")
    for sequence, prompt, own, other in compared_responses(tmp_path / "runs" / "routed"):
        tokens = sequence.tokens[prompt:].long()[:, None]
        expected, wrong = (logits.log_softmax(-1).gather(1, tokens)[:, 0] for logits in (own, other))
        actual = sequence.token("reference_logprobs")[prompt:]
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)
        assert (actual - wrong).abs().max() > 1e-3
    assert all(line["seconds/score/teacher"] > 0 for line in metrics)


def test_each_token_has_the_candidates_of_its_own_teacher(tmp_path: Path) -> None:
    """After hinted prompts, requested once the batch is complete, and two processes of one teacher share its
    samples."""
    algorithm = {
        "distribution": {"candidates": 3, "temperature": 2.0},
        "hint": {"template": "[{source}] {prompt}"},
    }
    jobs = routed_job(tmp_path, algorithm, overlap={"scoreOnArrival": False})
    with RunningJobs(
        jobs, tmp_path / "runs", "--no-dashboard", "--set", "spec.teachers.math.replicas=2"
    ) as run:
        assert run.end(150) == 0, run.output[-4000:]
        metrics = run.metrics("routed")
    for sequence, prompt, own, other in compared_responses(tmp_path / "runs" / "routed"):
        expected, wrong = ((logits / 2.0).log_softmax(-1).topk(3, -1).values for logits in (own, other))
        actual = sequence.token("candidate_logprobs")[prompt:]
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=0)
        assert (actual - wrong).abs().max() > 1e-3
        assert "reference_logprobs" not in sequence.token_columns
    assert all(line["distillation/kl"] > 0 and line["seconds/score/teacher"] > 0 for line in metrics)
