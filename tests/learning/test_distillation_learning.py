"""A student learns a teacher's distribution from rows whose own responses are noise.

Everything runs in one process: a frozen model gives the teacher's candidates, the trainer's backend makes the
updates, and the engine generates the answers.
"""

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from kubealign.spec.algorithms import Algorithm as AlgorithmUnion
from kubealign.spec.sections.engines import TorchEngineSpec as EngineSpec
from kubealign.spec.sections.precision import Precision
from kubealign.spec.sections.training import Trainer
from kubealign_services.algorithms.factory import make_algorithm
from kubealign_services.batch.packed import Batch
from kubealign_services.data.collate import collate
from kubealign_services.data.models.model_builder import build_model
from kubealign_services.data.prepared import PreparedRow
from kubealign_services.data.tokenization.tokenizers import train_character_tokenizer
from kubealign_services.generation.contract import GenerationRequest, SamplingParameters
from kubealign_services.generation.torch_engine.engine import TorchRolloutEngine
from kubealign_services.training.contract import Head, UpdatePlan
from kubealign_services.training.torch_backend.backend import TorchTrainingBackend
from kubealign_services.training.torch_backend.frozen_model import FrozenTorchModel

LETTERS = "abcdefgh"
TOKENIZER = train_character_tokenizer([LETTERS, LETTERS.upper()])
#: Share of correct rows in the teacher's training data, and so of correct samples of the trained teacher.
RIGHT = 0.7


class Learner:
    """One model in training, and an engine that samples from it."""

    def __init__(self, folder: Path, width: int, algorithm: dict[str, Any], rate: float) -> None:
        union = AlgorithmUnion.model_validate(algorithm)
        self.objective = make_algorithm(union).policy_objective()
        architecture = {
            "model_type": "llama",
            "hidden_size": width,
            "intermediate_size": 2 * width,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 32,
            "tie_word_embeddings": False,
        }
        build_model(architecture, TOKENIZER, 1, folder, "architecture")
        trainer = Trainer.model_validate({"optimizer": {"adamW": {"learningRate": rate}}})
        self.backend = TorchTrainingBackend.create(folder, Head.LANGUAGE_MODEL, trainer, total_updates=1000)
        self._engine = TorchRolloutEngine.create(folder, EngineSpec(max_sequences=256))
        self._version = 0

    def learn(self, batches: Iterable[Batch]) -> None:
        for step, batch in enumerate(batches):
            plan = UpdatePlan(epochs=1, minibatch_sequences=len(batch), seed=step)
            self.backend.train_step(batch, self.objective, plan)

    def accuracy(self, prompts: list[str]) -> float:
        """Return the share of correct sampled answers."""
        self._version += 1
        self._engine.refit(self.backend.snapshot(), self._version)
        sampling = SamplingParameters(max_tokens=3)
        for index, prompt in enumerate(prompts):
            tokens = tuple(TOKENIZER(prompt)["input_ids"])
            self._engine.add(GenerationRequest(str(index), tokens, (index,), sampling))
        responses = {}
        while len(responses) < len(prompts):
            responses |= {int(sample.request_id): sample.text for sample in self._engine.step()}
        return sum(responses[i] == answer(prompt) for i, prompt in enumerate(prompts)) / len(prompts)


def answer(prompt: str) -> str:
    return prompt[-1].upper()


def prompts(draw: random.Random, count: int) -> list[str]:
    return ["".join(draw.choices(LETTERS, k=3)) for _ in range(count)]


def batch_of(draw: random.Random, count: int, right: float) -> Batch:
    """Return rows that answer the capital of the last letter with probability `right`, else any capital."""
    rows = []
    for index, prompt in enumerate(prompts(draw, count)):
        response = answer(prompt) if draw.random() < right else draw.choice(LETTERS.upper())
        ended = [*TOKENIZER(response)["input_ids"], TOKENIZER.eos_token_id]
        rows.append(PreparedRow(index, TOKENIZER(prompt)["input_ids"], prompt, response_tokens=ended))
    return collate(rows, [f"0/{index}" for index in range(count)], "demonstrations")


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> tuple[FrozenTorchModel, float]:
    """Return the teacher and the share of its samples that are correct."""
    folder = tmp_path_factory.mktemp("teacher")
    draw = random.Random(1)
    learner = Learner(folder / "first", 48, {"sft": {}}, 5e-3)
    learner.learn(batch_of(draw, 64, RIGHT) for _ in range(60))
    learner.backend.export(folder / "taught")
    model = FrozenTorchModel.load(folder / "taught", Head.LANGUAGE_MODEL, Precision.FLOAT32, 8192)
    return model, learner.accuracy(prompts(draw, 400))


@pytest.mark.parametrize("divergence", ["Forward", "Reverse"])
def test_the_student_follows_the_teacher(
    divergence: str, teacher: tuple[FrozenTorchModel, float], tmp_path: Path
) -> None:
    model, accuracy = teacher
    assert accuracy == pytest.approx(RIGHT, abs=0.12)

    def taught(batch: Batch) -> Batch:
        batch.scalars["temperature"] = 1.0
        tokens, logprobs = model.topk_logprobs(batch, 6, len(TOKENIZER))
        batch.token_columns |= {"candidates": tokens, "candidate_logprobs": logprobs}
        return batch

    draw = random.Random(2)
    held_out = [taught(batch_of(draw, 128, 0.0)) for _ in range(2)]
    asked = prompts(draw, 400)
    algorithm = {"distillation": {"candidates": 6, "divergence": divergence}}
    student = Learner(tmp_path / "student", 24, algorithm, 1e-2)
    before = student.backend.evaluate(held_out[0], student.objective)["distillation/kl"]
    assert student.accuracy(asked) < 0.15
    # The responses of these rows are noise: only the teacher's distribution can be learned from them.
    student.learn(taught(batch_of(draw, 64, 0.0)) for _ in range(60))
    after = student.backend.evaluate(held_out[1], student.objective)
    assert after["distillation/kl"] < 0.1 * before
    assert after["distillation/agreement"] > 0.9
    assert student.accuracy(asked) == pytest.approx(accuracy, abs=0.12)
