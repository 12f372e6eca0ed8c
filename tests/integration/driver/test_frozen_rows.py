"""Restarts of the reference for given rows, the bus and the driver: no call hangs, and cached scores are not
requested again."""

import json
from pathlib import Path

import pytest

from support.running import RunningJobs
from support.tiny_jobs import FROM_CONFIG, write_jobs

ROWS = 160
PER_STEP = 8
EPOCH = ROWS // PER_STEP
STEPS = 3 * EPOCH


def dpo_job(folder: Path) -> Path:
    letters = "abcdefgh"
    pairs = [
        {"prompt": a + b, "chosen": c, "rejected": a} for a in letters for b in letters[:4] for c in "abcde"
    ]
    path = folder / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in pairs))
    data = {"preferences": {"source": {"path": str(path)}}}
    spec = {
        "maxSteps": STEPS,
        "algorithm": {"dpo": {"rowsPerStep": PER_STEP}},
        "policy": {"model": FROM_CONFIG},
        "data": data,
        "checkpoint": {"everySteps": 10},
        "lifecycle": {"maxRestarts": 5},
    }
    job = {"apiVersion": "kubealign.dev/v1alpha1", "kind": "AlignmentJob", "metadata": {"name": "rows"}}
    return write_jobs(folder, job | {"spec": spec})


@pytest.mark.timeout(300)
def test_each_row_is_trained_on_and_scored_once_despite_kills(tmp_path: Path) -> None:
    with RunningJobs(dpo_job(tmp_path), tmp_path / "runs", "--no-dashboard") as run:
        run.wait_for_step("rows", 1)
        run.kill("rows", "reference-0")
        run.wait_for_step("rows", EPOCH // 2)
        run.kill("rows", "nats")
        run.wait_for_step("rows", EPOCH + 1)
        run.kill("rows", "driver")
        assert run.end(200) == 0, run.output[-4000:]
        history = run.history("rows")
        lines = run.metrics("rows")
    trained = [row for line in history for row in line["prompts"]]
    assert sorted(trained) == sorted(f"{epoch}/{row}" for epoch in range(3) for row in range(ROWS))
    later = [line for line in lines if line["fence"] == 2 and "preference/loss" in line]
    assert later and all(line["reference/kept_share"] == 1 for line in later)
    asked = sum((1 - line["reference/kept_share"]) * line["batch/sequences"] for line in lines[:EPOCH])
    assert asked <= 2 * ROWS
