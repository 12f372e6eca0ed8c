"""Validation sets with their own rows, scores and periods through the real command, across a killed driver
and a stopped job.
"""

import json
import re
import signal
from collections import Counter, defaultdict
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from kubealign_services.data.prepared import load_prepared
from support.running import RunningJobs
from support.tiny_jobs import PACED_LETTER_A, online_job, set_pace, write_jobs, write_prompts, write_reward

pytestmark = pytest.mark.timeout(400)

STEPS = 9
#: Set -> steps at which it is measured: its period, the initial weights and the final ones.
MEASURED_AT = {"first": [0, 2, 4, 6, 8, 9], "second": [3, 6, 9]}


def write_rows(folder: Path, name: str, column: str, count: int) -> dict[str, Any]:
    """Write prompts whose answer is a letter in this column. Return the data of a set."""
    path = folder / f"{name}.jsonl"
    rows = [{"prompt": f"{name[0]}{letter}", column: letter} for letter in "abcdefgh"[:count]]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"prompts": {"source": {"path": str(path)}}}


def score(column: str) -> dict[str, Any]:
    return {"name": "right", "verifier": {"regex": {"pattern": "[a-h]", "answerColumn": column}}}


def write_job(folder: Path) -> Path:
    """Write a job whose sets have scores of one name that read columns which the other's rows lack."""
    job = online_job(
        folder,
        "sets",
        {"rloo": {"promptsPerStep": 4, "samplesPerPrompt": 2}},
        maxSteps=STEPS,
        rewards=[write_reward(folder, PACED_LETTER_A.format(file=str(set_pace(folder, 0.3))))],
        validation={
            "everySteps": 3,
            "sets": [
                {
                    "name": "first",
                    "data": write_rows(folder, "first", "letter", 8),
                    "sampling": {
                        "samplesPerPrompt": 4,
                        "maxTokens": 12,
                        "passAt": [4],
                        "scores": [score("letter")],
                    },
                    "everySteps": 2,
                },
                {
                    "name": "second",
                    "data": write_rows(folder, "second", "target", 3),
                    "sampling": {"scores": [score("target")]},
                    "rewards": ["letters"],
                    "atStart": False,
                },
            ],
        },
        checkpoint={"everySteps": 2, "keepBest": {"metric": "val/first/right/pass@4"}},
    )
    job["spec"]["data"] = {"prompts": {"source": {"path": str(write_prompts(folder, 36))}}}
    return write_jobs(folder, job)


def measurements(run: RunningJobs) -> dict[str, list[tuple[int, int]]]:
    """Return set -> (step, fence) of each measurement, in order."""
    measured = defaultdict(list)
    for line in run.metrics("sets"):
        for name in MEASURED_AT:
            if f"val/{name}/right" in line:
                measured[name].append((line["step"], line["fence"]))
    return measured


def read_samples(folder: Path, name: str, step: int) -> list[dict[str, Any]]:
    path = folder / "validation" / name / f"step-{step:06d}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def check_first(samples: list[dict[str, Any]], metrics: dict[str, float]) -> None:
    """Compare the metrics of a measurement with a loop over its samples."""
    passed = defaultdict(list)
    for sample in samples:
        letters = re.findall("[a-h]", sample["response"])
        passed[sample["group_id"]].append(letters[-1:] == [sample["columns"]["letter"]])
    assert [len(responses) for responses in passed.values()] == [4] * 8
    assert metrics["val/first/right"] == fmean(value for each in passed.values() for value in each)
    assert metrics["val/first/right/pass@4"] == fmean(any(each) for each in passed.values())
    assert metrics["val/first/response_length"] == fmean(sample["length"] for sample in samples)


def test_sets_with_periods_of_their_own_are_measured_once_across_restarts(tmp_path: Path) -> None:
    with RunningJobs(write_job(tmp_path), tmp_path / "runs", "--no-dashboard") as run:
        run.wait_for_step("sets", 3)
        run.kill("sets", "driver")
        run.wait_for_step("sets", 5)
        run.send(signal.SIGINT)
        assert run.end(60) == 130, run.output[-4000:]
        stopped, before = max(run.steps("sets")), measurements(run)
        run.start()
        assert run.end(200) == 0, run.output[-4000:]
        after, metrics, folder = measurements(run), run.metrics("sets"), run.folder("sets")
    assert {name: sorted({step for step, _ in after[name]}) for name in MEASURED_AT} == MEASURED_AT
    for name, steps in after.items():
        again = steps[len(before[name]) :]
        assert {step for step, _ in again}.isdisjoint(step for step, _ in before[name]), (stopped, steps)
        assert [count for _, count in Counter(again).items() if count > 1] == []

    final: dict[str, float] = {}
    for line in metrics:
        # The second set is due after the last step, the first one is measured at the end.
        final |= line if line["step"] == STEPS else {}
    samples = read_samples(folder, "first", STEPS)
    check_first(samples, final)
    assert max(sample["length"] for sample in samples) > 4, "longer than responses of the training"
    assert {name for sample in samples for name in sample["scores"]} == {"first-right"}
    others = read_samples(folder, "second", STEPS)
    assert len(others) == 3
    assert {name for sample in others for name in sample["scores"]} == {"letters", "second-right"}
    assert all(len(sample["columns"]["target"]) == 1 for sample in others)
    assert "val/second/reward/letters" in final and "val/first/reward/letters" not in final
    assert not any(name.startswith("val/right") for line in metrics for name in line)

    shown = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    purposes = {"train", "validation/first", "validation/second"}
    assert {sample["purpose"] for sample in shown} == purposes
    for sample in shown:
        first = {"train": "abcdefgh", "validation/first": "f", "validation/second": "s"}[sample["purpose"]]
        assert sample["prompt"][0] in first
    prepared = load_prepared(folder)
    assert {name: len(rows) for name, rows in prepared.validation_sets.items()} == {"first": 8, "second": 3}
