"""Verifiers as the rewards of a job, through the real command."""

import json
import re
from pathlib import Path
from statistics import fmean

import pytest

from kubealign_services.batch.reward_columns import read_scores
from kubealign_services.data.prepared import load_prepared, row_index
from support.recorded_batches import recorded_batches
from support.running import RunningJobs
from support.tiny_jobs import online_job, write_jobs

pytestmark = pytest.mark.timeout(240)

STEPS = 2


def test_verifiers_score_the_samples_of_a_job(tmp_path: Path) -> None:
    rows = [{"prompt": f"p{letter}", "letter": letter} for letter in "abcdefgh"]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    job = online_job(
        tmp_path,
        "verified",
        {"rloo": {"promptsPerStep": 8, "samplesPerPrompt": 4}},
        maxSteps=STEPS,
        data={"prompts": {"source": {"path": str(path)}}},
        rewards=[
            {"name": "right", "verifier": {"regex": {"pattern": "[a-h]", "answerColumn": "letter"}}},
            {"name": "short", "verifier": {"length": {"linear": {"fullTokens": 0, "zeroTokens": 8}}}},
        ],
        checkpoint={"everySteps": STEPS, "recordBatches": True},
    )
    with RunningJobs(write_jobs(tmp_path, job), tmp_path / "runs", "--no-dashboard") as run:
        assert run.end(150) == 0, run.output[-4000:]
        steps, folder = run.steps("verified"), run.folder("verified")
    prepared, counts = load_prepared(folder), 0
    for step, batch in enumerate(recorded_batches(folder, STEPS), start=1):
        right, lengths = [], []
        for index, sample_id in enumerate(batch.sample_ids):
            row, sequence = prepared.train[row_index(sample_id)], batch.select([index])
            tokens = sequence.tokens[sequence.token("loss_mask").bool()]
            response = prepared.tokenizer.decode(tokens).removesuffix(str(prepared.tokenizer.eos_token))
            letters = re.findall("[a-h]", response)
            right.append(float(letters[-1:] == [row.columns["letter"]]))
            lengths.append(1 - len(tokens) / 8)
        assert read_scores(batch, "right") == right
        assert read_scores(batch, "short") == lengths
        assert steps[step]["reward/right/mean"] == pytest.approx(fmean(right))
        counts += sum(right)
    assert counts > 0, "no sample was right, so the test shows nothing"
