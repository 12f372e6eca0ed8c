"""Each family through training, refit, generation and export in one process, against transformers."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from kubealign.spec.algorithms import GRPOSpec
from kubealign.spec.model_types import OTHER_TYPES
from kubealign.spec.sections.engines import TorchEngineSpec
from kubealign.spec.sections.training import AdamW, Lora, Optimizer, Trainer
from kubealign_services.algorithms.offline.sft import CrossEntropyObjective
from kubealign_services.algorithms.online.grpo import GRPOAlgorithm
from kubealign_services.batch.packed import Batch, pack
from kubealign_services.generation.contract import (
    GeneratedSample,
    GenerationRequest,
    RequestRefused,
    SamplingParameters,
)
from kubealign_services.generation.torch_engine.engine import TorchRolloutEngine
from kubealign_services.roles.rollout.weights import read_folder_weights
from kubealign_services.training.contract import Head, UpdatePlan
from kubealign_services.training.torch_backend.backend import TorchTrainingBackend
from support.model_families import FAMILIES, ModelFamily, Oracle, other_model

LOGPROBS = frozenset({"logprobs"})
#: Longer than a window; of different lengths, which select the attention of each sequence alone.
LENGTHS = (40, 3, 64, 33)
#: The first is longer than a window, and both responses leave it.
PROMPTS = {"0": list(range(30, 41)), "1": [77, 5, 9]}
RESPONSE = 24
#: Factors that differ so much that the wrong ones show.
LONG_ROPE = {"rope_type": "longrope", "short_factor": [1.0] * 16, "long_factor": [4.0] * 16}
DYNAMIC_ROPE = {"rope_type": "dynamic", "factor": 4.0}


def backend_of(folder: Path, lora: Lora | None) -> TorchTrainingBackend:
    spec = Trainer(optimizer=Optimizer(adam_w=AdamW(learning_rate=1e-2)), lora=lora)
    return TorchTrainingBackend.create(folder, Head.LANGUAGE_MODEL, spec, total_updates=20)


def demonstrations() -> Batch:
    """Return random sequences, whose first two tokens are the prompt."""
    generator = torch.Generator().manual_seed(3)
    batch = pack(
        [torch.randint(0, 256, (length,), generator=generator).tolist() for length in LENGTHS],
        [str(i) for i in range(len(LENGTHS))],
    )
    batch.token_columns["loss_mask"] = (batch.positions > 1).to(torch.uint8)
    return batch


def samples_of(engine: TorchRolloutEngine) -> list[GeneratedSample]:
    """Return four responses to each prompt, in a fixed order."""
    sampling = SamplingParameters(max_tokens=RESPONSE, min_tokens=RESPONSE)
    for name, prompt in PROMPTS.items():
        engine.add(GenerationRequest(name, tuple(prompt), (1, 2, 3, 4), sampling))
    samples: list[GeneratedSample] = []
    while engine.load().running or engine.load().waiting:
        samples += engine.step()
    assert len(samples) == 8
    return sorted(samples, key=lambda sample: (sample.request_id, sample.sample))


def grpo_batch(samples: Sequence[GeneratedSample]) -> Batch:
    """Return the samples with the columns of a GRPO step, rewarded for small tokens."""
    prompts = [PROMPTS[sample.request_id] for sample in samples]
    batch = pack(
        [prompt + sample.tokens for prompt, sample in zip(prompts, samples, strict=True)],
        [f"{sample.request_id}/{sample.sample}" for sample in samples],
    )
    columns = batch.token_columns
    columns["loss_mask"] = torch.cat(
        [(torch.arange(len(prompt) + RESPONSE) >= len(prompt)).to(torch.uint8) for prompt in prompts]
    )
    columns["engine_logprobs"] = torch.cat(
        [
            torch.tensor([0.0] * len(prompt) + sample.engine_logprobs)
            for prompt, sample in zip(prompts, samples, strict=True)
        ]
    )
    columns["behaviour_logprobs"] = columns["engine_logprobs"]
    rewards = [sum(token < 128 for token in sample.tokens) / RESPONSE for sample in samples]
    batch.sequence_columns["rewards"] = torch.tensor(rewards, dtype=torch.float64)
    batch.sequence_columns["group"] = torch.tensor([int(sample.request_id) for sample in samples])
    batch.sequence_columns["truncated"] = torch.zeros(len(batch), dtype=torch.uint8)
    batch.scalars |= {"temperature": 1.0, "max_tokens": float(RESPONSE)}
    return batch


def check_trainer(backend: TorchTrainingBackend, folder: Path, batch: Batch) -> None:
    """Compare the packed pass, shared prompts included, with the exported folder's model."""
    oracle, lengths = Oracle(folder), batch.lengths.tolist()
    expected = torch.tensor(
        [each for tokens in batch.tokens.split(lengths) for each in (0.0, *oracle.logprobs(tokens.tolist()))]
    )
    actual, counted = backend.forward(batch, LOGPROBS)["logprobs"], batch.token_columns["loss_mask"].bool()
    torch.testing.assert_close(actual[counted], expected[counted], atol=1e-4, rtol=0)


def check_engine(engine: TorchRolloutEngine, folder: Path) -> list[GeneratedSample]:
    """Compare the log-probabilities of samples, drawn token by token, and of whole sequences."""
    oracle, samples = Oracle(folder), samples_of(engine)
    for sample in samples:
        prompt = PROMPTS[sample.request_id]
        sequence = prompt + sample.tokens
        expected = oracle.logprobs(sequence)
        assert sample.engine_logprobs == pytest.approx(expected[len(prompt) - 1 :], abs=1e-4)
        assert engine.sequence_logprobs(sequence) == pytest.approx(expected, abs=1e-4)
    return samples


def refit(engine: TorchRolloutEngine, backend: TorchTrainingBackend, version: int) -> None:
    """Give the engine copies of the weights, which the next update does not change."""
    engine.refit(((name, tensor.clone()) for name, tensor in backend.snapshot()), version)


def changed_weights(backend: TorchTrainingBackend, before: dict[str, torch.Tensor]) -> set[str]:
    return {name for name, tensor in backend.snapshot() if not torch.equal(tensor, before[name])}


def grpo_step(backend: TorchTrainingBackend, samples: Sequence[GeneratedSample]) -> None:
    batch = grpo_batch(samples)
    algorithm = GRPOAlgorithm(GRPOSpec(prompts_per_step=2, samples_per_prompt=4))
    algorithm.advantages(batch, {})
    metrics = backend.train_step(batch, algorithm.policy_objective(), UpdatePlan(1, len(batch), seed=1))
    assert metrics["policy/ratio_max"] == pytest.approx(1, abs=1e-4) and metrics["policy/entropy"] > 0


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_full_weights(family: ModelFamily, tmp_path: Path) -> None:
    folder, batch = family.save(tmp_path / "model"), demonstrations()
    backend = backend_of(folder, None)
    check_trainer(backend, folder, batch)
    losses = [
        backend.train_step(batch, CrossEntropyObjective(), UpdatePlan(1, 4, seed=step))["loss"]
        for step in range(3)
    ]
    assert losses[-1] < losses[0] - 0.1, losses
    backend.export(tmp_path / "sft")
    check_trainer(backend, tmp_path / "sft", batch)

    engine = TorchRolloutEngine.create(folder, TorchEngineSpec(max_sequences=8, prefill_tokens=64))
    refit(engine, backend, 1)
    samples = check_engine(engine, tmp_path / "sft")

    before = {name: tensor.clone() for name, tensor in backend.snapshot()}
    grpo_step(backend, samples)
    # An expert to which no token went has no gradient.
    assert {
        name for name in before.keys() - changed_weights(backend, before) if "experts" not in name
    } == set()
    refit(engine, backend, 2)
    backend.export(tmp_path / "grpo")
    check_trainer(backend, tmp_path / "grpo", grpo_batch(samples))
    check_engine(engine, tmp_path / "grpo")


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_lora(family: ModelFamily, tmp_path: Path) -> None:
    folder, batch = family.save(tmp_path / "model"), demonstrations()
    backend = backend_of(folder, Lora(rank=4, alpha=16))
    losses = [
        backend.train_step(batch, CrossEntropyObjective(), UpdatePlan(1, 4, seed=step))["loss"]
        for step in range(3)
    ]
    assert losses[-1] < losses[0] - 0.02, losses

    engine = TorchRolloutEngine.create(folder, TorchEngineSpec(max_sequences=8, prefill_tokens=64))
    engine.refit(read_folder_weights(folder), 0)
    for version, result in ((1, tmp_path / "sft"), (2, tmp_path / "grpo")):
        snapshot = backend.adapter()
        assert snapshot is not None
        engine.adapt([(name, tensor.clone()) for name, tensor in snapshot.tensors], snapshot.scale, version)
        backend.export(result)
        check_trainer(backend, result, batch)
        samples = check_engine(engine, result)
        grpo_step(backend, samples)
    # The adapter of the last step has not been exported.
    with pytest.raises(AssertionError, match="not close"):
        check_trainer(backend, result, batch)


@pytest.mark.parametrize(
    ("family", "most"),
    [
        (
            ModelFamily(
                "Phi 3 of 128k",
                "phi3",
                {"original_max_position_embeddings": 64, "rope_parameters": LONG_ROPE},
            ),
            64,
        ),
        (
            ModelFamily("Llama", "llama", {"max_position_embeddings": 64, "rope_parameters": DYNAMIC_ROPE}),
            64,
        ),
    ],
    ids=["longrope", "dynamic"],
)
def test_rotary_embeddings_that_depend_on_the_longest_sequence(
    family: ModelFamily, most: int, tmp_path: Path
) -> None:
    """Sequences of at most the original length have the same frequencies whatever the others' lengths."""
    folder, batch = family.save(tmp_path / "model"), demonstrations()
    assert int(batch.lengths.max()) == most
    backend = backend_of(folder, None)
    check_trainer(backend, folder, batch)
    engine = TorchRolloutEngine.create(folder, TorchEngineSpec(max_sequences=8, prefill_tokens=64))
    refit(engine, backend, 1)
    check_engine(engine, folder)
    longer = pack([[1] * (most + 1)], ["0"])
    with pytest.raises(ValueError, match="a sequence of 65 tokens; the model has 64 positions"):
        backend.forward(longer, LOGPROBS)
    request = GenerationRequest("0", (1,) * most, (1,), SamplingParameters(max_tokens=1))
    with pytest.raises(RequestRefused, match="64"):
        engine.add(request)


@pytest.mark.full
@pytest.mark.parametrize("model_type", OTHER_TYPES)
def test_other_types(model_type: str, tmp_path: Path) -> None:
    folder, batch = other_model(model_type).save(tmp_path / "model"), demonstrations()
    backend = backend_of(folder, None)
    check_trainer(backend, folder, batch)
    backend.train_step(batch, CrossEntropyObjective(), UpdatePlan(1, 4, seed=0))
    backend.export(tmp_path / "sft")
    engine = TorchRolloutEngine.create(folder, TorchEngineSpec(max_sequences=8, prefill_tokens=64))
    refit(engine, backend, 1)
    check_engine(engine, tmp_path / "sft")
