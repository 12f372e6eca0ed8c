"""Supervised fine-tuning and reward models improve on held-out rows."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from support.running import RunningJobs
from support.tiny_jobs import FROM_CONFIG, write_jobs

LETTERS = "abcdefgh"
STEPS = 80


def rows_of(seed: int, count: int) -> list[dict[str, Any]]:
    """Return rows whose prompts have six letters.

    The demonstration is the last letter twice. The chosen response has three letters, one of them an a; the
    rejected one has three without. The rating is the share of the letter a in the rated response. A step of
    two letters is right where the first is an a.
    """
    draw = random.Random(seed)
    rows = []
    for _ in range(count):
        prompt = "".join(draw.choices(LETTERS, k=6))
        others = draw.choices(LETTERS.replace("a", ""), k=5)
        rated = "".join(draw.choices("ab", k=4))
        rows.append(
            {
                "prompt": prompt,
                "response": prompt[-1] * 2,
                "chosen": "".join(draw.sample(["a", *others[:2]], 3)),
                "rejected": "".join(others[2:]),
                "rated": rated,
                "rating": rated.count("a") / 4,
                "steps": ["".join(draw.choices("ab", k=2)) for _ in range(3)],
            }
        )
        rows[-1]["labels"] = [step[0] == "a" for step in rows[-1]["steps"]]
    return rows


def offline_job(folder: Path, name: str, algorithm: dict[str, Any], kind: str, **text: Any) -> dict[str, Any]:
    """Return a job on these rows; `text` holds fields of the format, such as differently named columns."""
    form = {"format": {"text": text}} if text else {}

    def data(file: str) -> dict[str, Any]:
        return {kind: {"source": {"path": str(folder / f"{file}.jsonl")}} | form}

    return {
        "apiVersion": "kubealign.dev/v1alpha1",
        "kind": "AlignmentJob",
        "metadata": {"name": name},
        "spec": {
            "maxSteps": STEPS,
            "algorithm": algorithm,
            "policy": {"model": FROM_CONFIG},
            "data": data("train"),
            "trainer": {
                "optimizer": {
                    "adamW": {"learningRate": 1.0e-2},
                    "schedule": {"linear": {"decayFraction": 0.5}},
                }
            },
            "validation": {"data": data("held")},
            "checkpoint": {"everySteps": STEPS},
        },
    }


@pytest.fixture(scope="module")
def held_out(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """Run the four jobs by one command; return job -> its validation metrics before and after training."""
    folder = tmp_path_factory.mktemp("offline")
    for name, rows in {"train": rows_of(1, 1500), "held": rows_of(2, 150)}.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    reward_model = {"rowsPerStep": 48}
    jobs = [
        offline_job(folder, "sft", {"sft": {"rowsPerStep": 48}}, "demonstrations"),
        offline_job(
            folder,
            "pairs",
            {"rewardModel": reward_model | {"objective": {"bradleyTerry": {}}}},
            "preferences",
        ),
        offline_job(
            folder,
            "ratings",
            {"rewardModel": reward_model | {"objective": {"regression": {}}, "pooling": "ResponseSum"}},
            "ratings",
            response="rated",
        ),
        offline_job(
            folder,
            "steps",
            {"rewardModel": reward_model | {"objective": {"stepClassification": {}}}},
            "ratings",
            response="steps",
            steps={"separator": "d"},
        ),
    ]
    metrics_by_job = {}
    with RunningJobs(write_jobs(folder, *jobs), folder / "runs") as run:
        assert run.end(270) == 0, run.output
        for job in jobs:
            name = job["metadata"]["name"]
            lines = [line for line in run.metrics(name) if "val/loss" in line]
            metrics_by_job[name] = (lines[0], lines[-1])
            assert [line["step"] for line in metrics_by_job[name]] == [0, STEPS]
    return metrics_by_job


Held = dict[str, tuple[dict[str, Any], dict[str, Any]]]


@pytest.mark.timeout(300)
def test_sft_learns_the_demonstrations(held_out: Held) -> None:
    """Only the first of the three tokens (letter, repetition, end) depends on the prompt.

    A policy that ignores the prompt has a loss of log 8 / 3 = 0.69 a token. Untrained, about ten tokens are
    equally likely: log 10 = 2.3.
    """
    before, after = held_out["sft"]
    assert before["val/loss"] > 2.0
    assert after["val/loss"] < 0.35


@pytest.mark.timeout(300)
def test_a_reward_model_tells_held_out_pairs_apart(held_out: Held) -> None:
    before, after = held_out["pairs"]
    assert before["val/loss"] == pytest.approx(0.693, abs=0.05), "log 2: it knows nothing"
    assert after["val/accuracy"] > 0.9
    assert after["val/margin"] > before["val/margin"] + 1.0


@pytest.mark.timeout(300)
def test_a_regression_head_comes_near_held_out_ratings(held_out: Held) -> None:
    """Ratings k/4 with k from Binomial(4, 1/2) have variance 1/16: predicting the mean has loss 0.0625."""
    before, after = held_out["ratings"]
    assert before["val/loss"] > 0.2
    assert after["val/loss"] < 0.0625 / 4
    assert after["val/absolute_error"] < 0.1


@pytest.mark.timeout(300)
def test_a_process_reward_model_tells_held_out_steps_apart(held_out: Held) -> None:
    """Half of the steps are right, and whether one is depends on its own first letter alone."""
    before, after = held_out["steps"]
    assert before["val/loss"] == pytest.approx(0.693, abs=0.1), "log 2: it knows nothing"
    assert after["val/step_label"] == pytest.approx(0.5, abs=0.1)
    assert after["val/accuracy"] > 0.95
    assert after["val/loss"] < 0.2
