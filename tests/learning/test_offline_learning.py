"""Supervised fine-tuning and reward models learn, seen on rows that they were not trained on."""

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
    """Prompts of six letters. Imitated: the last letter twice. Chosen: three letters, the letter a among
    them; rejected: three without. Rating: the share of a response's letters that are the letter a."""
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
            }
        )
    return rows


def offline_job(folder: Path, name: str, algorithm: dict[str, Any], kind: str, **text: str) -> dict[str, Any]:
    """A job on the rows' columns; `text` maps what `kind` wants to columns that are called otherwise."""
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
    """Job -> its validation figures before and after; the three jobs by one command."""
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
    ]
    found = {}
    with RunningJobs(write_jobs(folder, *jobs), folder / "runs") as run:
        assert run.end(270) == 0, run.output
        for job in jobs:
            name = job["metadata"]["name"]
            lines = [line for line in run.metrics(name) if "val/loss" in line]
            found[name] = (lines[0], lines[-1])
            assert [line["step"] for line in found[name]] == [0, STEPS]
    return found


Held = dict[str, tuple[dict[str, Any], dict[str, Any]]]


@pytest.mark.timeout(300)
def test_sft_learns_what_it_is_shown(held_out: Held) -> None:
    """Of three tokens, the letter, its repetition and the end, one alone takes knowing the prompt: who does
    not read it is left with log 8 / 3 = 0.69 a token. At first all ten or so are alike: log 10 = 2.3."""
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
    """The ratings k/4, k of Binomial(4, 1/2), have variance 1/16: their mean alone has loss 0.0625."""
    before, after = held_out["ratings"]
    assert before["val/loss"] > 0.2
    assert after["val/loss"] < 0.0625 / 4
    assert after["val/absolute_error"] < 0.1
