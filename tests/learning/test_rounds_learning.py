"""Iterative methods improve from round to round.

The driver's source of rounds, a bus, a rollout worker, the real engine and the real backend run in this
process. The metrics of a round describe samples of its initial weights, so those of the first round describe
the initial policy.
"""

import random
from itertools import pairwise, product
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from kubealign_services.data.tokenization.tokenizers import train_character_tokenizer
from kubealign_services.roles.driver.validation.samples import ValidationSample
from support.rounds_in_process import Policy, rounds_job

pytestmark = pytest.mark.timeout(200)

LETTERS = "abcdefgh"
PROMPTS = [first + last for first in LETTERS for last in LETTERS]


async def test_spin_reproduces_the_demonstrations_more_often_each_round(tmp_path: Path) -> None:
    """The demonstrations are the prompt's last letter, twice. The policy was briefly trained on them."""
    policy = Policy(tmp_path, train_character_tokenizer(PROMPTS), learning_rate=5e-3)
    demonstrations = [(prompt, prompt[-1] * 2) for prompt in PROMPTS]
    random.Random(1).shuffle(demonstrations)
    policy.imitate(demonstrations, steps=20, rows_per_step=32)
    policy.set_learning_rate(1e-2)
    rows = [policy.row(number, *shown) for number, shown in enumerate(demonstrations)]
    entry: dict[str, Any] = {
        "rounds": 5,
        "promptsPerRound": 64,
        "samplesPerPrompt": 4,
        "rowsPerStep": 64,
        "epochsPerRound": 2,
        "beta": 10.0,
    }
    async with rounds_job(tmp_path, policy, rows, {"spin": entry}, "demonstrations", max_tokens=3) as job:
        figures = await job.learn(rounds=5)
        alike = [begun["round/alike_share"] for begun in job.begun()]
    assert len(alike) == 5
    assert alike[0] < 0.3 and fmean(alike[-2:]) > 1.5 * alike[0], alike
    # The share is measured on 256 samples: its standard error is 0.03.
    assert all(later > earlier - 0.03 for earlier, later in pairwise(alike)), alike
    # At the start of a round the policy equals its reference, so its margin is zero.
    for begun in job.begun():
        assert begun["preference/margin"] == pytest.approx(0, abs=1e-4)
    assert max(step["preference/accuracy"] for step in figures) > 0.7


async def test_the_mean_reward_of_rejection_sampling_rises_each_round(tmp_path: Path) -> None:
    """The reward is the share of three letters that equal the prompt's last letter: 0.1 by chance."""

    def repeated(prompt: str, response: str) -> float:
        return response[:3].count(prompt[-1]) / 3

    policy = Policy(tmp_path, train_character_tokenizer(PROMPTS), learning_rate=2e-2)
    rows = [policy.row(number, prompt) for number, prompt in enumerate(PROMPTS)]
    entry = {
        "rounds": 4,
        "promptsPerRound": 64,
        "samplesPerPrompt": 8,
        "rowsPerStep": 64,
        "epochsPerRound": 8,
    }
    job = rounds_job(
        tmp_path, policy, rows, {"rejectionSampling": entry}, "prompts", max_tokens=4, reward=repeated
    )
    async with job as rounds:
        await rounds.learn(rounds=4)
        begun = rounds.begun()
    rewards = [figures["round/reward_mean"] for figures in begun]
    assert rewards[0] < 0.12 and rewards[-1] > 0.3, rewards
    assert all(later > earlier for earlier, later in pairwise(rewards)), rewards
    assert all(figures["round/chosen_reward"] > figures["round/reward_mean"] for figures in begun)


async def test_self_rewarding_also_raises_the_true_score(
    tmp_path: Path,
) -> None:
    """The policy is first trained to write any three of four letters and to count the letter a in a response.
    It then learns from its own counts, and the true count rises too.
    """
    letters = "abcd"
    draw = random.Random(1)
    prompts = [first + last + ">" for first in letters for last in letters]
    counted = [(word + "=", str(word.count("a"))) for word in map("".join, product(letters, repeat=3))]
    policy = Policy(tmp_path, train_character_tokenizer([*prompts, "=0123"]), learning_rate=1e-2)
    taught = []
    for _ in range(90):
        taught += draw.sample(counted, 32)
        taught += [(draw.choice(prompts), "".join(draw.choices(letters, k=3))) for _ in range(8)]
    policy.imitate(taught, steps=90, rows_per_step=40)
    policy.set_learning_rate(5e-3)
    rows = [policy.row(number, prompt) for number, prompt in enumerate(prompts)]
    entry = {
        "rounds": 4,
        "promptsPerRound": 64,
        "samplesPerPrompt": 4,
        "rowsPerStep": 32,
        "epochsPerRound": 2,
        "beta": 0.5,
        "judge": {"prompt": "{response}=", "pattern": "^([0-9])$", "maxTokens": 3, "temperature": 0.0},
    }
    async with rounds_job(tmp_path, policy, rows, {"selfRewarding": entry}, "prompts", max_tokens=4) as job:
        await job.learn(rounds=4)
        begun = job.begun()
    true = [share_of_a(samples) for samples in job.answers]
    assert true[0] < 0.35 and true[-1] > 0.5, true
    assert all(later > earlier for earlier, later in pairwise(true)), true
    judged = [figures["round/reward_mean"] for figures in begun]
    assert all(later > earlier for earlier, later in pairwise(judged)), judged
    assert all(figures["round/unparsed_share"] < 0.1 for figures in begun)
    assert all(figures["round/chosen_reward"] > figures["round/rejected_reward"] + 0.5 for figures in begun)


def share_of_a(samples: Any) -> float:
    all_samples: list[ValidationSample] = list(samples)
    return fmean(sample.response[:3].count("a") / 3 for sample in all_samples)
