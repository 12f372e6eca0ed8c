"""Rewards of different sources of prompts through the real command: metrics and recorded batches have what a
loop over the samples computes, and no function is called for the rows of another source."""

import json
import math
from collections import Counter, defaultdict
from pathlib import Path
from statistics import fmean, pstdev, stdev
from typing import Any

import pytest

from kubealign.client.backends.local.metrics import read_validation
from kubealign.read_model import parse_sample
from kubealign.spec.algorithms import Algorithm
from kubealign_services.algorithms.factory import make_algorithm
from kubealign_services.batch.packed import Batch
from kubealign_services.batch.reward_columns import read_scores
from kubealign_services.data.prepared import PreparedJob, load_prepared, row_index
from support.recorded_batches import recorded_batches
from support.running import RunningJobs
from support.tiny_jobs import online_job, write_jobs, write_reward

pytestmark = pytest.mark.timeout(240)

STEPS = 3
ALGORITHM: dict[str, Any] = {
    "grpo": {"promptsPerStep": 6, "samplesPerPrompt": 3, "rewardAggregation": "NormalizeThenSum"}
}
#: Function that writes the source of each row to a file.
FUNCTION = """
import json

async def reward(prompts, responses, source):
    with open({log!r}, "a") as file:
        file.writelines(json.dumps(name) + "\\n" for name in source)
    return [{score} for prompt, response in zip(prompts, responses)]
"""


def exact(prompt: str, response: str) -> float | None:
    return len(set(response)) - 1.5


def style(prompt: str, response: str) -> float | None:
    return None if prompt < "pe" else response.count("a") / 2


#: Result with the number of letters as a metric and in the explanation.
EXPLAINED = """{"reward": (letters := len(set(response))) - 1.5, "metrics": {"letters": letters},
    "explanation": f"{letters} letters"}"""
#: Reward -> its source, its function, and the function's expression; style does not apply to all poems.
SCORES = {
    "exact": ("sums", exact, EXPLAINED),
    "style": ("poems", style, 'None if prompt < "pe" else response.count("a") / 2'),
}


def write_job(folder: Path) -> Path:
    """Write a job with two sources of prompts, each of which has its own reward."""
    mixture = []
    for source in ("sums", "poems"):
        path = folder / f"{source}.jsonl"
        rows = [{"prompt": f"{source[0]}{letter}"} for letter in "abcdefgh"]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        mixture.append({"name": source, "source": {"path": str(path)}})
    rewards = []
    for name, (source, _, score) in SCORES.items():
        code = FUNCTION.format(log=str(folder / f"{name}.log"), score=score)
        rewards.append(write_reward(folder, code, name) | {"sources": [source], "weight": 2.0})
    held_out = {"path": str(folder / "sums.jsonl")}
    job = online_job(
        folder,
        "routed",
        ALGORITHM,
        maxSteps=STEPS,
        data={"prompts": {"mixture": mixture, "shuffle": False}},
        rewards=rewards,
        validation={
            "data": {"prompts": {"source": held_out, "limit": 2, "values": {"source": "sums"}}},
            "atStart": False,
            "sampling": {
                "samplesPerPrompt": 4,
                "passAt": [1, 4],
                "passThreshold": 0.5,
                "majority": {"regex": {"pattern": "(.)"}},
                "confidence": 0.9,
            },
        },
        checkpoint={"everySteps": 2, "recordBatches": True},
    )
    return write_jobs(folder, job)


def expected_scores(batch: Batch, prepared: PreparedJob, name: str) -> list[float | None]:
    """Return the score of each sample, computed from its text; None where the reward does not apply."""
    source, function, _ = SCORES[name]
    scores = []
    for index, sample_id in enumerate(batch.sample_ids):
        row, sequence = prepared.train[row_index(sample_id)], batch.select([index])
        tokens = sequence.tokens[sequence.token("loss_mask").bool()]
        response = prepared.tokenizer.decode(tokens).removesuffix(str(prepared.tokenizer.eos_token))
        scores.append(function(row.prompt_text, response) if row.columns["source"] == source else None)
    return scores


def expected_advantages(batch: Batch, scores: dict[str, list[float | None]]) -> list[float]:
    """Return GDPO's advantages, group by group; 0 for samples without any score."""
    group = batch.sequence("group").tolist()
    totals = [0.0] * len(batch)
    for column in scores.values():
        members = defaultdict(list)
        for index, score in enumerate(column):
            if score is not None:
                members[group[index]].append((index, score))
        for entries in members.values():
            values = [score for _, score in entries]
            for index, score in entries:
                totals[index] += 2.0 * (score - fmean(values)) / (stdev(values) + 1e-6)
    scored = [any(score is not None for score in each) for each in zip(*scores.values(), strict=True)]
    known = [total for total, is_scored in zip(totals, scored, strict=True) if is_scored]
    return [
        (total - fmean(known)) / (stdev(known) + 1e-6) if is_scored else 0.0
        for total, is_scored in zip(totals, scored, strict=True)
    ]


def check_validation(answers: Path, metrics: dict[str, float]) -> None:
    """Compare the metrics of four responses to each of two prompts with a loop over the stored ones."""
    prompts: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for line in answers.read_text().splitlines():
        answer = json.loads(line)
        prompts[answer["group_id"]].append((answer["response"], answer["scores"]["exact"]))
    assert [len(members) for members in prompts.values()] == [4, 4]
    passing = [[score >= 0.5 for _, score in members] for members in prompts.values()]
    name = "val/reward/exact"
    assert metrics[f"{name}/pass@1"] == pytest.approx(fmean(fmean(each) for each in passing))
    assert metrics[f"{name}/pass@4"] == fmean(any(each) for each in passing)
    majorities = []
    for members in prompts.values():
        votes = Counter(response[-1] for response, _ in members if response)
        winners = [answer for answer, count in votes.items() if count == max(votes.values())]
        by_answer = [fmean(s for r, s in members if r and r[-1] == answer) for answer in winners]
        majorities.append(fmean(by_answer) if by_answer else fmean(score for _, score in members))
    assert metrics[f"{name}/majority@4"] == pytest.approx(fmean(majorities))
    for each in (name, f"{name}/pass@1", f"{name}/pass@4", f"{name}/majority@4"):
        assert metrics[f"{each}/ci_low"] <= metrics[each] <= metrics[f"{each}/ci_high"]


def test_each_reward_scores_the_samples_of_its_source(tmp_path: Path) -> None:
    with RunningJobs(write_job(tmp_path), tmp_path / "runs", "--no-dashboard") as run:
        assert run.end(150) == 0, run.output[-4000:]
        steps, metrics = run.steps("routed"), run.metrics("routed")
        folder = run.folder("routed")
    algorithm = make_algorithm(Algorithm.model_validate(ALGORITHM))
    prepared, counts = load_prepared(folder), defaultdict(list)
    for step, batch in enumerate(recorded_batches(folder, STEPS), start=1):
        scores = {name: expected_scores(batch, prepared, name) for name in SCORES}
        totals = [0.0] * len(batch)
        for name, column in scores.items():
            assert read_scores(batch, name) == column
            known = [score for score in column if score is not None]
            counts[name].append(len(known))
            expected = {"mean": fmean(known), "std": pstdev(known)} if known else {}
            if name == "exact":
                expected["letters"] = fmean(known) + 1.5
            actual = {key: value for key, value in steps[step].items() if key.startswith(f"reward/{name}/")}
            assert actual == pytest.approx({f"reward/{name}/{key}": value for key, value in expected.items()})
            totals = [total + 2.0 * (score or 0.0) for total, score in zip(totals, column, strict=True)]
        assert batch.sequence("rewards").tolist() == totals
        unrewarded = [all(score is None for score in each) for each in zip(*scores.values(), strict=True)]
        assert math.isclose(steps[step]["reward/unrewarded_share"], fmean(unrewarded), abs_tol=1e-9)
        # Batches are recorded before the advantages are added; a replay computes them from the columns.
        algorithm.advantages(batch, {})
        last_tokens = batch.token("advantages")[batch.cu_seqlens[1:].long() - 1]
        assert last_tokens.tolist() == pytest.approx(expected_advantages(batch, scores), abs=1e-5)
    # Six prompts in turn from both sources: style does not apply to the poems pa to pd.
    assert counts == {"exact": [9, 9, 9], "style": [0, 6, 6]}
    for name, (source, _, _) in SCORES.items():
        rows = (tmp_path / f"{name}.log").read_text().split()
        assert set(rows) == {f'"{source}"'}
    validated = next(line for line in metrics if "val/reward/exact" in line)
    assert "val/reward/style" not in validated
    check_validation(folder / "validation" / f"step-{STEPS:06d}.jsonl", validated)
    # The dashboard compares these with the responses of another validation.
    records = read_validation(folder / "validation", STEPS)
    assert [record.row for record in records] == [0] * 4 + [1] * 4
    assert all(record.prompt == f"s{'ab'[record.row]}" for record in records)
    assert all(record.scores["exact"] is not None for record in records)
    shown = [
        parse_sample("", 0, json.loads(line)) for line in (folder / "samples.jsonl").read_text().splitlines()
    ]
    assert all(None in sample.rewards.values() and len(sample.rewards) == 2 for sample in shown)
    for sample in shown:
        exact_score = sample.rewards["exact"]
        explanation = {} if exact_score is None else {"exact": f"{exact_score + 1.5:.0f} letters"}
        assert sample.explanations == explanation
    assert steps[1]["reward/unrewarded_share"] == 0.5
    logs = "".join(path.read_text() for path in (folder / "logs").iterdir())
    assert logs.count("no reward applies to a sample") == 1
