"""Ten steps of PPO by the real command: all metrics are present and right, for every transport of weights and
placement of scorers.

One file of jobs: the first weights, a reward model, and the same PPO job in layouts that must not change its
metrics.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import AutoModelForCausalLM, AutoTokenizer

from kubealign.read_model import parse_sample
from kubealign_services.roles.driver.metrics.sample_logging import PREVIEWS_PER_STEP
from support.metrics_page import online_figures
from support.running import RunningJobs
from support.tiny_jobs import FROM_CONFIG, online_job, write_jobs, write_prompts, write_reward

STEPS = 10
TOKEN_VALUES = {"logprobs", "trainer_logprobs", "logprob_gap", "kl", "advantages", "values"}
FIGURES = online_figures(["preference", "letters"], critic=True, kl_in_loss=False)
#: Metrics that depend on the clock or the weight transport.
NOT_REPEATED = re.compile(
    r"time|fence|seconds/.*|tokens_per_second.*|refit/(snapshot_seconds|received_bytes|.*_workers)"
)

PPO: dict[str, Any] = {
    "promptsPerStep": 8,
    "samplesPerPrompt": 2,
    "minibatchSequences": 8,
    "epochsPerStep": 2,
    "kl": {"fixed": {"coefficient": 0.05}},
}
LAYOUTS: dict[str, dict[str, Any]] = {
    "shared": {
        "refit": {"transport": "SharedMemory"},
        "trackers": [
            {"name": "lines", "completions": 6, "jsonLines": {}},
            {"name": "curves", "tensorBoard": {}},
        ],
    },
    # Trainer and critic score finished groups while others are still generated.
    "stream": {"reference": "WithTrainer", "reward": "WithCritic", "refit": {"transport": "Stream"}},
    "colocated": {"reference": "WithTrainer", "reward": "WithCritic", "scoring": "WholeBatch"},
    "again": {"reference": "WithTrainer", "reward": "WithCritic", "scoring": "WholeBatch"},
    # Each rank streams its shard, after the first step as a delta.
    "ranks": {"ranks": 2, "refit": {"transport": "Stream", "encoding": "Delta"}},
}


@dataclass(frozen=True)
class Ran:
    """Metrics and result of a finished job."""

    figures: dict[int, dict[str, Any]]
    result: Path


def first_jobs(folder: Path) -> list[dict[str, Any]]:
    """Return the jobs of the policy's first weights and of a reward model, trained from those weights, that
    prefers the letter a. Their data contain every letter of the prompts."""
    path = folder / "preferences.jsonl"
    rows = [
        {"prompt": first + second, "chosen": "aa", "rejected": second * 2}
        for first in "abcdefgh"
        for second in "bcdefgh"
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def job(
        name: str, steps: int, algorithm: dict[str, Any], model: Any, data: dict[str, Any]
    ) -> dict[str, Any]:
        return {
            "apiVersion": "kubealign.dev/v1alpha1",
            "kind": "AlignmentJob",
            "metadata": {"name": name},
            "spec": {
                "maxSteps": steps,
                "algorithm": algorithm,
                "policy": {"model": model},
                "data": data,
                "trainer": {"optimizer": {"adamW": {"learningRate": 1.0e-3}}},
            },
        }

    source = {"source": {"path": str(path)}}
    imitate = {"demonstrations": source | {"format": {"text": {"response": "rejected"}}}}
    prefer = {"rewardModel": {"rowsPerStep": 16, "scorePenalty": 0.01}}
    return [
        job("sft", 4, {"sft": {"rowsPerStep": 16}}, FROM_CONFIG, imitate),
        job("rm", 8, prefer, {"job": {"name": "sft"}}, {"preferences": source}),
    ]


def ppo_job(folder: Path, name: str, layout: Mapping[str, Any]) -> dict[str, Any]:
    preference = {
        "name": "preference",
        "model": {"job": {"name": "rm"}},
        "placement": layout.get("reward", "Own"),
        "standardize": {"running": {}},
        "clip": 3.0,
    }
    return online_job(
        folder,
        name,
        {"ppo": PPO},
        maxSteps=STEPS,
        policy={"model": {"job": {"name": "sft"}}},
        data={"prompts": {"source": {"path": str(write_prompts(folder, 64))}}},
        trainer={"ranks": layout.get("ranks", 1), "optimizer": {"adamW": {"learningRate": 1.0e-3}}},
        critic={"optimizer": {"adamW": {"learningRate": 1.0e-3}}},
        reference={"placement": layout.get("reference", "Own")},
        rewards=[preference, write_reward(folder)],
        rollout={
            "sampling": {"maxTokens": 6},
            "refit": layout.get("refit", {}),
            "scoring": layout.get("scoring"),
        },
        checkpoint={"everySteps": STEPS},
        trackers=layout.get("trackers", []),
    )


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    """Run all jobs of the file by one command; return them by name."""
    folder = tmp_path_factory.mktemp("numbers")
    jobs = [ppo_job(folder, name, layout) for name, layout in LAYOUTS.items()]
    with RunningJobs(write_jobs(folder, *first_jobs(folder), *jobs), folder / "runs") as run:
        assert run.end(280) == 0, run.output
        return {name: Ran(run.steps(name), run.folder(name) / "result") for name in LAYOUTS}


def repeated(figures: Mapping[str, float]) -> dict[str, float]:
    return {name: value for name, value in figures.items() if not NOT_REPEATED.fullmatch(name)}


def test_the_page_names_the_figures_that_matter() -> None:
    """Check the list of metrics itself, since the next test only checks that the listed ones are present."""
    assert {"reward/mean", "reward/preference/mean", "kl/reference", "critic/explained_variance"} <= FIGURES
    assert {"rollout/logprob_gap_max", "weights/version", "data/dropped_prompts", "seconds/refit"} <= FIGURES
    assert len(FIGURES) > 50


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "transport"), [("shared", "shared_memory"), ("stream", "stream"), ("ranks", "stream")]
)
def test_every_step_has_every_figure_and_fresh_weights(
    runs: dict[str, Ran], name: str, transport: str
) -> None:
    figures = runs[name].figures
    assert sorted(figures) == list(range(1, STEPS + 1))
    # The critic's process reports the time of its reward models as one.
    expected = FIGURES - {"seconds/score/preference"} if "reward" in LAYOUTS[name] else FIGURES
    for step, line in figures.items():
        assert expected - line.keys() == set(), f"missing at step {step}"
        assert [key for key, value in line.items() if not math.isfinite(value)] == []
        assert line["rollout/logprob_gap_max"] < 1e-4
        assert line["refit/canary_gap"] < 1e-4
        assert line["weights/version"] == step - 1
        assert line["rollout/staleness_max"] == 0
        assert line[f"refit/{transport}_workers"] == 1
        assert line["refit/retries"] == line["refit/quarantined_workers"] == 0
        assert line["batch/sequences"] == 16
    assert figures[1]["kl/reference"] == pytest.approx(0, abs=1e-5), "the policy starts as its reference"
    # 64 prompts, 8 per step: the ninth step begins the second epoch.
    assert [figures[step]["data/epoch"] for step in (1, 9)] == [0, 1]


@pytest.mark.timeout(300)
def test_every_token_that_is_shown_has_its_numbers(runs: dict[str, Ran]) -> None:
    path = runs["shared"].result.parent / "samples.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["step"] for line in lines] == [
        step for step in range(1, STEPS + 1) for _ in range(PREVIEWS_PER_STEP)
    ]
    for line in lines:
        sample = parse_sample("", line["step"], line)
        assert "".join(sample.tokens) == sample.response
        assert sample.weight_version == sample.step - 1
        assert sample.token_values.keys() == TOKEN_VALUES
        for name, values in sample.token_values.items():
            assert len(values) == len(sample.tokens) > 0, name
        gaps = [gap for gap in sample.token_values["logprob_gap"] if gap is not None]
        assert max(map(abs, gaps)) < 1e-4
    for step, figures in runs["shared"].figures.items():
        rewards = [line["reward"] for line in lines if line["step"] == step]
        assert rewards[0] == max(rewards) >= figures["reward/mean"] >= rewards[1] == min(rewards)


@pytest.mark.timeout(300)
def test_trainer_and_critic_score_at_the_same_time(runs: dict[str, Ran]) -> None:
    """Check that reference (of the trainer) and reward model (of the critic) do not wait for each other.

    One after the other, no step's scoring is shorter than both together."""
    lines = runs["colocated"].figures.values()
    assert any(
        line["seconds/score"] < line["seconds/score/critic"] + line["seconds/score/reference"]
        for line in lines
    )


@pytest.mark.timeout(300)
def test_trackers_have_the_same_figures(runs: dict[str, Ran]) -> None:
    folder, figures = runs["shared"].result.parent / "trackers", runs["shared"].figures
    lines = [json.loads(line) for line in (folder / "lines" / "metrics.jsonl").read_text().splitlines()]
    assert {line["step"]: line["metrics"] for line in lines} == {
        step: {name: value for name, value in metrics.items() if name not in ("step", "fence", "time")}
        for step, metrics in figures.items()
    }
    rows = [json.loads(line) for line in (folder / "lines" / "completions.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [step for step in range(1, STEPS + 1) for _ in range(6)]
    assert all(row.keys() >= {"completion", "reward/letters", "reward/preference"} for row in rows)
    events = EventAccumulator(str(folder / "curves")).Reload()
    curve = {event.step: event.value for event in events.Scalars("reward/mean")}
    assert curve == {step: pytest.approx(metrics["reward/mean"]) for step, metrics in figures.items()}


@pytest.mark.timeout(300)
def test_the_policy_moves(runs: dict[str, Ran]) -> None:
    """Check that training changes the policy, without which equal metrics would prove nothing."""
    figures = runs["shared"].figures
    assert figures[STEPS]["kl/reference_sequence"] > 0.01
    assert figures[STEPS]["policy/ratio_max"] > 1.01
    assert figures[STEPS]["trainer/gradient_norm"] > 0


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["stream", "colocated", "ranks"])
def test_layouts_give_the_same_numbers(runs: dict[str, Ran], name: str) -> None:
    """Compare with a tolerance of 1e-5, relative above 1: separate scorers batch the samples differently, and
    ranks sum in another order."""
    for step in range(1, STEPS + 1):
        ours, theirs = (repeated(runs[each].figures[step]) for each in ("shared", name))
        assert ours.keys() == theirs.keys()
        for figure, value in ours.items():
            assert theirs[figure] == pytest.approx(value, rel=1e-5, abs=1e-5), f"{figure} at step {step}"


@pytest.mark.timeout(300)
def test_the_same_job_gives_the_same_bits(runs: dict[str, Ran]) -> None:
    """Compare layouts in which all scoring uses whole batches. The engine's log-probabilities depend on the
    samples that run concurrently, which affects only the gap."""
    for step in range(1, STEPS + 1):
        once, twice = (repeated(runs[name].figures[step]) for name in ("colocated", "again"))
        different = {name for name in once if once[name] != twice[name]}
        assert different <= {"rollout/logprob_gap_mean", "rollout/logprob_gap_max"}, step
    ours, theirs = (load_file(runs[name].result / "model.safetensors") for name in ("colocated", "again"))
    assert ours.keys() == theirs.keys()
    assert [name for name, weight in ours.items() if not torch.equal(weight, theirs[name])] == []


@pytest.mark.timeout(300)
def test_the_result_loads_and_answers(runs: dict[str, Ran]) -> None:
    folder = runs["shared"].result
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    prompt = tokenizer("ab", return_tensors="pt", add_special_tokens=False)
    answer = model.generate(**prompt, max_new_tokens=4, do_sample=False)
    assert prompt["input_ids"].shape[1] < answer.shape[1] <= prompt["input_ids"].shape[1] + 4
    assert isinstance(tokenizer.decode(answer[0], skip_special_tokens=True), str)
