"""PPO, RLOO and GRPO learn through the real command: mean reward from below 0.1 to above 0.8.

The task is to repeat the prompt's last letter. The alphabet has sixteen letters, so that a policy that knows
nothing is right in about one of eighteen; four of them end a prompt: what is learned depends on the prompt.
"""

import json
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from support.running import RunningJobs
from support.tiny_jobs import ARCHITECTURE, online_job, write_jobs, write_reward

SEED = 1
ALPHABET = "abcdefghijklmnop"
LAST = "cgkp"
# First weights large enough for the first gradients to say something.
MODEL = {
    "config": {
        "architecture": ARCHITECTURE | {"initializer_range": 0.1},
        "tokenizer": {"train": {"characters": {}}},
    }
}
SAMPLING = {"promptsPerStep": 24, "samplesPerPrompt": 6, "minibatchSequences": 24}
REPEATED = """
def reward(prompts, responses, **columns):
    return [
        response.count(prompt[-1]) / max(1, len(response))
        for prompt, response in zip(prompts, responses, strict=True)
    ]
"""


def learning_job(
    folder: Path, name: str, algorithm: dict[str, Any], steps: int, **spec: Any
) -> dict[str, Any]:
    prompts = folder / "repeat.jsonl"
    rows = [{"prompt": first + last} for first in ALPHABET for last in LAST]
    prompts.write_text("".join(json.dumps(row) + "\n" for row in rows))
    parts: dict[str, Any] = {
        "seed": SEED,
        "maxSteps": steps,
        "policy": {"model": MODEL},
        "data": {"prompts": {"source": {"path": str(prompts)}}},
        "trainer": {"optimizer": {"adamW": {"learningRate": 3.0e-3}}},
        "rewards": [write_reward(folder, REPEATED, "repeated")],
        "rollout": {"engine": {"torch": {"maxSequences": 144}}, "sampling": {"maxTokens": 4}},
        "checkpoint": {"everySteps": steps},
    }
    return online_job(folder, name, algorithm, **(parts | spec))


def run_of(folder: Path, job: dict[str, Any], steps: int) -> dict[int, dict[str, Any]]:
    """The figures of each step, the job having ended well."""
    name = job["metadata"]["name"]
    with RunningJobs(write_jobs(folder, job), folder / "runs") as run:
        assert run.end(240) == 0, run.output
        figures = run.steps(name)
    assert sorted(figures) == list(range(1, steps + 1))
    return figures


@pytest.mark.timeout(280)
@pytest.mark.parametrize("name", ["ppo", "rloo", "grpo"])
def test_the_mean_reward_rises_from_below_a_tenth_to_above_four_fifths(tmp_path: Path, name: str) -> None:
    kl = {"fixed": {"coefficient": 0.002}}
    entries: dict[str, dict[str, Any]] = {
        "ppo": SAMPLING | {"kl": kl},
        "rloo": SAMPLING | {"kl": kl, "whitenAdvantages": True},
        "grpo": SAMPLING | {"kl": kl | {"placement": "Loss", "estimator": "K3"}},
    }
    critic = {"model": MODEL, "optimizer": {"adamW": {"learningRate": 3.0e-3}}}
    others = {"critic": critic} if name == "ppo" else {}
    steps = 26
    figures = run_of(tmp_path, learning_job(tmp_path, name, {name: entries[name]}, steps, **others), steps)
    rewards = [figures[step]["reward/mean"] for step in range(1, steps + 1)]
    assert fmean(rewards[:2]) < 0.1, rewards
    assert fmean(rewards[-4:]) > 0.8, rewards


@pytest.mark.timeout(280)
def test_the_adaptive_coefficient_brings_the_divergence_near_its_target(tmp_path: Path) -> None:
    """With hardly a pull the policy goes to about 4 log 18 = 11.6 nats, as above; it is held at 3."""
    adaptive = {"adaptive": {"initialCoefficient": 0.15, "target": 3.0, "horizon": 480}}
    steps = 36
    job = learning_job(
        tmp_path, "adaptive", {"rloo": SAMPLING | {"kl": adaptive, "whitenAdvantages": True}}, steps
    )
    figures = run_of(tmp_path, job, steps)
    divergence = [figures[step]["kl/reference_sequence"] for step in range(1, steps + 1)]
    assert abs(divergence[0]) < 1e-3, "the policy starts as its reference"
    assert 0.7 * 3.0 < fmean(divergence[-10:]) < 1.3 * 3.0, divergence
    # 144 sequences against a horizon of 480: a step moves the coefficient by at most 0.2 * 144 / 480 = 6 %.
    coefficients = [figures[step]["kl/coefficient"] for step in range(1, steps + 1)]
    moves = [after / before for before, after in pairwise(coefficients)]
    assert all(0.94 - 1e-6 < move < 1.06 + 1e-6 for move in moves), moves
    assert all((move > 1) == (nats > 3.0) for move, nats in zip(moves, divergence, strict=False)), moves
