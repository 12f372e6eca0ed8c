"""Adapters learn a new answer format by imitation, and then the correct answer by reward."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import torch

from kubealign.spec.algorithms import Algorithm
from kubealign.spec.sections.training import Trainer
from kubealign_services.algorithms.factory import make_algorithm
from kubealign_services.batch.packed import Batch, pack
from kubealign_services.data.models.model_builder import build_model
from kubealign_services.data.tokenization.tokenizers import train_character_tokenizer
from kubealign_services.training.contract import Head, UpdatePlan
from kubealign_services.training.torch_backend.backend import TorchTrainingBackend
from support.online_learning import OnlineLearner, Task
from support.tiny_jobs import ARCHITECTURE

PROMPTS = [first + last for first in "abcdefghijklmnop" for last in "cgkp"]
LARGE = ARCHITECTURE | {"initializer_range": 0.1}
TOKENIZER = train_character_tokenizer(PROMPTS)
SFT = make_algorithm(Algorithm.model_validate({"sft": {}})).policy_objective()
LORA = {"rank": 8, "alpha": 16, "dora": True}


def rows(answer: Callable[[random.Random, str], str], seed: int) -> Batch:
    """Return a batch with each prompt once, its answer and the end-of-sequence token."""
    draw = random.Random(seed)
    texts = [(prompt, answer(draw, prompt)) for prompt in PROMPTS]
    ids = [TOKENIZER(prompt + response)["input_ids"] + [TOKENIZER.eos_token_id] for prompt, response in texts]
    batch = pack(ids, PROMPTS)
    batch.token_columns["loss_mask"] = (batch.positions >= 2).to(torch.uint8)
    return batch


def imitate(
    backend: TorchTrainingBackend, answer: Callable[[random.Random, str], str], steps: int
) -> list[float]:
    """Train on answered prompts and return the loss of each step."""
    plan = UpdatePlan(1, len(PROMPTS), seed=1)
    return [backend.train_step(rows(answer, step), SFT, plan)["loss"] for step in range(steps)]


def adapt_a_base(
    folder: Path, monkeypatch: pytest.MonkeyPatch, shape: dict[str, Any], rate: float, lora: dict[str, Any]
) -> None:
    """Train a base to answer a letter of the prompt and an adapter to answer it twice. A later online learner
    starts from the merged model.

    Args:
        shape: Architecture of the model.
        rate: Learning rate of the base.
    """
    build_model(shape, TOKENIZER, 1, folder / "first", "")
    full = Trainer.model_validate({"optimizer": {"adamW": {"learningRate": rate}}})
    adapted = Trainer.model_validate({"optimizer": {"adamW": {"learningRate": 1e-2}}, "lora": lora})
    base = TorchTrainingBackend.create(folder / "first", Head.LANGUAGE_MODEL, full, total_updates=60)
    imitate(base, lambda draw, prompt: draw.choice(prompt), 60)
    base.export(folder / "base")

    # The answer is one letter of the prompt, twice. The random choice costs at least log 2 over three tokens.
    tuned = TorchTrainingBackend.create(
        folder / "base", Head.LANGUAGE_MODEL, adapted, total_updates=40, seed=1
    )
    losses = imitate(tuned, lambda draw, prompt: 2 * draw.choice(prompt), 40)
    assert losses[0] > 1.0 and fmean(losses[-4:]) < 0.5, losses
    tuned.export(folder / "tuned")
    monkeypatch.setattr(
        "support.online_learning.build_model",
        lambda _1, _2, _3, target, _4: shutil.copytree(folder / "tuned", target),
    )


def reward_of_the_last_letter(prompt: str, response: str) -> float:
    return float(response == 2 * prompt[-1])


def test_imitation_and_then_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adapt_a_base(tmp_path, monkeypatch, LARGE, 1e-2, LORA)
    task = Task(PROMPTS, reward_of_the_last_letter, LARGE, 4, 5e-3, {"lora": LORA})
    grpo = {"promptsPerStep": 24, "samplesPerPrompt": 6, "minibatchSequences": 48}
    kl = {"kl": {"fixed": {"coefficient": 0.002}, "placement": "Loss", "estimator": "K3"}}
    entry = grpo | kl | {"aggregation": "SequenceMean"}
    rewards = OnlineLearner(tmp_path / "online", task, {"grpo": entry}, seed=1).learn(16)
    assert fmean(rewards[:2]) < 0.6, rewards
    assert fmean(rewards[-3:]) > 0.85, rewards


def test_imitation_and_reward_above_a_quantised_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Imitate the answers of a base in NF4, then learn from a reward with samples of the merged model."""
    wide = LARGE | {"hidden_size": 64, "intermediate_size": 128}
    lora = LORA | {"dora": False, "quantization": {"nf4": {}}}
    adapt_a_base(tmp_path, monkeypatch, wide, 5e-3, lora)
    task = Task(PROMPTS, reward_of_the_last_letter, wide, 4, 5e-3, {"lora": lora})
    entry = {"promptsPerStep": 24, "samplesPerPrompt": 6, "epochsPerStep": 2}
    learner = OnlineLearner(tmp_path / "online", task, {"grpo": entry}, seed=1)
    rewards = learner.learn(8)
    # The engine samples from the model that is trained, the dequantised base with the adapter.
    gaps = [figures["rollout/logprob_gap_max"] for figures in learner.figures]
    assert max(gaps) < 1e-3, gaps
    assert fmean(rewards[-2:]) > fmean(rewards[:2]) + 0.15, rewards
