"""Every online method raises the mean reward from below 0.1 to above its threshold.

The task is to repeat the prompt's last letter. The alphabet has sixteen letters, so an untrained policy is
correct about once in eighteen times; four letters end a prompt, so the policy has to read the prompt. One job
runs through the real command, the others run in this process with the same components.
"""

import dataclasses
import json
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from kubealign.spec.algorithms import Algorithm
from kubealign.spec.base import field_alias
from kubealign.spec.field_lookup import nested_model
from kubealign_services.roles.driver.rollouts.batch_assembly import compute_staleness
from support.online_learning import OnlineLearner, Task
from support.running import RunningJobs
from support.tiny_jobs import ARCHITECTURE, online_job, write_jobs, write_reward

SEED = 1
ALPHABET = "abcdefghijklmnop"
LAST = "cgkp"
PROMPTS = [first + last for first in ALPHABET for last in LAST]
# Initial weights large enough for informative first gradients.
LARGE = ARCHITECTURE | {"initializer_range": 0.1}
TASK = Task(PROMPTS, lambda prompt, response: response.count(prompt[-1]) / max(1, len(response)), LARGE)
REPEATED = """
def reward(prompts, responses, **columns):
    return [
        response.count(prompt[-1]) / max(1, len(response))
        for prompt, response in zip(prompts, responses, strict=True)
    ]
"""

SAMPLES = {"promptsPerStep": 24, "samplesPerPrompt": 6}
SEVERAL = SAMPLES | {"minibatchSequences": 24}
#: One response of the policy to each prompt, and one of the reference.
PAIRS = {"promptsPerStep": 72, "minibatchSequences": 24}
PULL = {"fixed": {"coefficient": 0.002}}
PULL_IN_LOSS = PULL | {"placement": "Loss", "estimator": "K3"}
WHITE = {"center": "LeaveOneOut", "scale": "Batch"}


@dataclasses.dataclass(frozen=True)
class Case:
    """Settings and reward threshold of a method.

    A method without a probability ratio makes one optimiser step per step, with a larger learning rate.
    """

    entry: dict[str, Any]
    learning_rate: float = 3.0e-3
    above: float = 0.8


CASES = {
    "ppo": Case(SEVERAL | {"kl": PULL, "gae": {"lambda": 0.95}}),
    "reinforce": Case(SAMPLES | {"kl": PULL}, learning_rate=1.0e-2),
    "reinforcePlusPlus": Case(SEVERAL | {"kl": PULL}),
    "rloo": Case(SEVERAL | {"kl": PULL, "advantage": WHITE}),
    "remax": Case(SAMPLES | {"kl": PULL}, learning_rate=1.0e-2, above=0.7),
    "grpo": Case(SEVERAL | {"kl": PULL_IN_LOSS, "aggregation": "SequenceMean"}),
    "deepseekMath": Case(SEVERAL),
    "drGrpo": Case(SEVERAL | {"kl": PULL_IN_LOSS}),
    "dapo": Case(SEVERAL | {"dynamicSampling": {"maxRefills": 2}}),
    "gspo": Case(SEVERAL, above=0.7),
    "cispo": Case(SEVERAL),
    "onlineDpo": Case(SEVERAL, above=0.6),
    "xpo": Case(PAIRS, above=0.6),
}
#: Methods whose loss is another case's loss with other settings or another clip.
SIMILAR = ("reinforce", "deepseekMath", "drGrpo", "gspo", "cispo")


def test_every_method_that_samples_its_batches_is_among_the_cases() -> None:
    online = {
        field_alias(Algorithm, member)
        for member, field in Algorithm.model_fields.items()
        if getattr(nested_model(field.annotation), "online", False)
    }
    assert online - {"custom", "onPolicyDistillation"} == set(CASES)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.full] if name in SIMILAR else []) for name in CASES]
)
def test_the_mean_reward_rises(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    task = dataclasses.replace(TASK, learning_rate=case.learning_rate)
    rewards = OnlineLearner(tmp_path, task, {name: case.entry}, SEED).learn(26)
    assert fmean(rewards[:2]) < 0.1, rewards
    assert fmean(rewards[-4:]) > case.above, rewards


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a model that has learned the task by rewards."""
    folder = tmp_path_factory.mktemp("taught")
    teacher = OnlineLearner(folder, TASK, {"rloo": CASES["rloo"].entry}, SEED)
    teacher.learn(26)
    assert teacher.figures[-1]["task/mean"] > 0.8
    teacher.trainer.export(folder / "result")
    return folder / "result"


def test_the_student_s_samples_approach_those_of_the_teacher(tmp_path: Path, taught: Path) -> None:
    """On-policy distillation without rewards: a teacher that has learned the task by rewards judges a student
    that starts from the same weights."""
    algorithm = {"onPolicyDistillation": SAMPLES | {"samplesPerPrompt": 2, "minibatchSequences": 24}}
    student = OnlineLearner(tmp_path, TASK, algorithm, SEED, reference=taught)
    student.learn(20)
    score, divergence = (
        [line[name] for line in student.figures] for name in ("task/mean", "kl/reference_sequence")
    )
    assert score[0] < 0.1 and divergence[0] > 5
    assert fmean(score[-4:]) > 0.7, score
    assert fmean(divergence[-4:]) < 0.2 * divergence[0], divergence


def test_a_policy_learns_from_itself_with_a_hint(tmp_path: Path, taught: Path) -> None:
    """Self-distillation: weights that repeat a prompt's last letter judge responses to a prompt without that
    letter, which the hint adds. The student has to remember the letter of each prompt."""
    answers = {letter: LAST[index % len(LAST)] for index, letter in enumerate(ALPHABET)}
    task = dataclasses.replace(
        TASK,
        prompts=list(answers),
        teacher_prompts=[letter + answer for letter, answer in answers.items()],
        reward=lambda prompt, response: response.count(answers[prompt]) / max(1, len(response)),
    )
    hint = {"template": "{prompt}{answer}"}
    samples = {"promptsPerStep": 16, "samplesPerPrompt": 9, "minibatchSequences": 24}
    student = OnlineLearner(
        tmp_path, task, {"onPolicyDistillation": samples | {"hint": hint}}, SEED, policy=taught
    )
    student.learn(16)
    score, divergence = (
        [line[name] for line in student.figures] for name in ("task/mean", "kl/reference_sequence")
    )
    assert score[0] < 0.4, score
    assert fmean(score[-4:]) > 0.6, score
    assert fmean(divergence[-4:]) < 0.6 * divergence[0], divergence


@pytest.mark.parametrize("name", ["ppo", pytest.param("grpo", marks=pytest.mark.full)])
def test_samples_of_older_weights_are_learned_from_by_the_decoupled_loss(tmp_path: Path, name: str) -> None:
    learner = OnlineLearner(tmp_path, TASK, {name: CASES[name].entry | {"maxStaleness": 2}}, SEED)
    rewards = learner.learn(26)
    assert learner.batch is not None
    assert compute_staleness(learner.batch, learner.version - 1).tolist() == [2] * len(learner.batch)
    assert 0.5 < learner.figures[-1]["importance/mean"] < 2
    assert learner.figures[-1]["policy/behaviour_kl"] > 0
    assert fmean(rewards[:2]) < 0.1, rewards
    assert fmean(rewards[-4:]) > 0.7, rewards


def test_the_adaptive_coefficient_brings_the_divergence_near_its_target(tmp_path: Path) -> None:
    """With a weak KL penalty the policy diverges to about 4 log 18 = 11.6 nats; the target holds it at 3."""
    adaptive = {"adaptive": {"initialCoefficient": 0.15, "target": 3.0, "horizon": 480}}
    learner = OnlineLearner(tmp_path, TASK, {"rloo": SEVERAL | {"kl": adaptive, "advantage": WHITE}}, SEED)
    learner.learn(36)
    divergence = [figures["kl/reference_sequence"] for figures in learner.figures]
    assert abs(divergence[0]) < 1e-3, "the policy starts as its reference"
    assert 0.7 * 3.0 < fmean(divergence[-10:]) < 1.3 * 3.0, divergence
    # 144 sequences against a horizon of 480: a step moves the coefficient by at most 0.2 * 144 / 480 = 6 %.
    coefficients = [figures["kl/coefficient"] for figures in learner.figures]
    moves = [after / before for before, after in pairwise(coefficients)]
    assert all(0.94 - 1e-6 < move < 1.06 + 1e-6 for move in moves), moves
    assert all((move > 1) == (nats > 3.0) for move, nats in zip(moves, divergence, strict=False)), moves


@pytest.mark.timeout(280)
@pytest.mark.parametrize("staleness", [2, pytest.param(0, marks=pytest.mark.full)])
def test_ppo_raises_the_mean_reward_through_the_real_command(tmp_path: Path, staleness: int) -> None:
    """Train by PPO with one process per role, on current samples and on samples up to two versions old."""
    steps = 26
    prompts = tmp_path / "repeat.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))
    model = {"config": {"architecture": LARGE, "tokenizer": {"train": {"characters": {}}}}}
    job = online_job(
        tmp_path,
        "ppo",
        {"ppo": CASES["ppo"].entry | {"maxStaleness": staleness}},
        seed=SEED,
        maxSteps=steps,
        policy={"model": model},
        data={"prompts": {"source": {"path": str(prompts)}}},
        trainer={"optimizer": {"adamW": {"learningRate": 3.0e-3}}},
        critic={"model": model, "optimizer": {"adamW": {"learningRate": 3.0e-3}}},
        rewards=[write_reward(tmp_path, REPEATED, "repeated")],
        rollout={"engine": {"torch": {"maxSequences": 144}}, "sampling": {"maxTokens": 4}},
        checkpoint={"everySteps": steps},
    )
    with RunningJobs(write_jobs(tmp_path, job), tmp_path / "runs") as run:
        assert run.end(240) == 0, run.output
        figures = run.steps("ppo")
    assert sorted(figures) == list(range(1, steps + 1))
    rewards = [figures[step]["reward/mean"] for step in range(1, steps + 1)]
    assert fmean(rewards[:2]) < 0.1, rewards
    assert fmean(rewards[-4:]) > 0.7, rewards
    ages = [figures[step]["rollout/staleness_max"] for step in range(1, steps + 1)]
    assert max(ages) <= staleness, ages
    if staleness:
        # Groups of three steps are in flight from the first step on.
        assert fmean(ages[3:]) > 1, ages
