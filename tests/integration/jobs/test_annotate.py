"""A data set with the rewards' scores as columns: a model with several scores, an ensemble, a model of
another vocabulary and a function, with the driver killed in between."""

import json
from itertools import islice, product
from pathlib import Path
from typing import Any

import pytest

from kubealign_services.data.tokenization.tokenizers import load_tokenizer, train_bpe_tokenizer
from support.running import RunningJobs
from support.tiny_jobs import PACED_LETTER_A, set_pace, write_jobs, write_reward
from support.tiny_rewards import classifier_folder, policy_folder, reward_folder, scores_of

LETTERS = "abcd"
ROWS = [
    {"prompt": first + second, "response": (second + third) * (1 + index % 3), "number": index}
    for index, (first, second, third) in enumerate(islice(product(LETTERS, repeat=3), 42))
]
NAMES = ("good", "long", "kind")


@pytest.fixture
def models(tmp_path: Path) -> dict[str, Path]:
    return {
        "policy": policy_folder(tmp_path / "policy", LETTERS),
        "steer": reward_folder(tmp_path / "steer", LETTERS, NAMES, seed=2, pooling="ResponseSum"),
        "first": reward_folder(tmp_path / "first", LETTERS, seed=3),
        "second": reward_folder(tmp_path / "second", LETTERS, seed=4, pooling="LastToken"),
        "bytes": classifier_folder(tmp_path / "bytes", train_bpe_tokenizer(["abcd"] * 2, 262), seed=5),
    }


def annotate_job(folder: Path, models: dict[str, Path], **algorithm: Any) -> Path:
    """Return a job with three steps of fourteen rows, each at least as long as the function's delay."""
    rows = folder / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    places = {name: {"path": str(path)} for name, path in models.items()}
    ensemble = {"models": [places["first"], places["second"]], "aggregate": "Minimum"}
    return write_jobs(
        folder,
        {
            "apiVersion": "kubealign.dev/v1alpha1",
            "kind": "AlignmentJob",
            "metadata": {"name": "annotated"},
            "spec": {
                "maxSteps": 100,
                "algorithm": {"annotate": {"rowsPerStep": 14} | algorithm},
                "policy": {"model": places["policy"]},
                "data": {"demonstrations": {"source": {"path": str(rows)}}},
                "rewards": [
                    {"name": "steer", "model": places["steer"], "attributes": {"good": 1, "long": -2}},
                    {"name": "pair", "ensemble": ensemble},
                    {"name": "bytes", "model": places["bytes"]},
                    write_reward(folder, PACED_LETTER_A.format(file=str(set_pace(folder, 0.5)))),
                ],
            },
        },
    )


def expected(models: dict[str, Path]) -> list[dict[str, float]]:
    """Return each row's columns, computed by transformers per sequence and by counting."""
    tokenizer = load_tokenizer(models["policy"], "policy")
    sequences = [
        (
            tokenizer(row["prompt"])["input_ids"]
            + tokenizer(row["response"])["input_ids"]
            + [tokenizer.eos_token_id],
            len(row["prompt"]),
        )
        for row in ROWS
    ]
    scores = {name: scores_of(models[name], sequences).tolist() for name in ("steer", "first", "second")}
    other = load_tokenizer(models["bytes"], "bytes")
    texts = [(other(row["prompt"] + row["response"] + "<eos>")["input_ids"], 0) for row in ROWS]
    scores["bytes"] = scores_of(models["bytes"], texts).tolist()
    return [
        dict(zip(NAMES, scores["steer"][index], strict=True))
        | {"pair": min(scores["first"][index][0], scores["second"][index][0])}
        | {"bytes": scores["bytes"][index][0]}
        | {"letters": row["response"].count("a") / len(row["response"])}
        for index, row in enumerate(ROWS)
    ]


def result(run: RunningJobs) -> list[dict[str, Any]]:
    path = run.folder("annotated") / "result" / "data.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.timeout(240)
def test_every_row_once_in_its_order_with_its_scores_though_the_driver_is_killed(
    tmp_path: Path, models: dict[str, Path]
) -> None:
    with RunningJobs(annotate_job(tmp_path, models), tmp_path / "runs") as run:
        run.wait_for_step("annotated", 1)
        run.kill("annotated", "driver")
        assert run.end(180) == 0, run.output
        rows = result(run)
        figures = run.steps("annotated")
    assert sorted(figures) == [1, 2, 3]
    scores = expected(models)
    assert [{key: row[key] for key in ROWS[0]} for row in rows] == ROWS
    for row, row_scores in zip(rows, scores, strict=True):
        assert {key: row[key] for key in row if key not in ROWS[0]} == pytest.approx(row_scores, abs=1e-4)
    first = scores[:14]
    mean = {name: sum(row_scores[name] for row_scores in first) / 14 for name in first[0]}
    assert figures[1]["reward/steer/kind"] == pytest.approx(mean["kind"], abs=1e-4)
    weighed = mean["good"] - 2 * mean["long"]
    assert figures[1]["reward/steer/mean"] == pytest.approx(weighed, abs=1e-4)
    assert figures[1]["reward/pair/disagreement"] > 0
    others = mean["pair"] + mean["bytes"] + mean["letters"]
    assert figures[1]["reward/mean"] == pytest.approx(weighed + others, abs=1e-4)
