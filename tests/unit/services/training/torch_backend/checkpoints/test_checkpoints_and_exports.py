"""Checkpoint shards, exported folders for transformers, and weight streams for the weight sync."""

# mypy: disable-error-code="no-untyped-call"
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, Qwen3MoeConfig

from kubealign.spec.algorithms import RewardModelSpec as RewardModelSpec
from kubealign.spec.sections.precision import Precision
from kubealign.spec.sections.training import AdamW, Optimizer, Trainer
from kubealign_services.algorithms.contract import Objective
from kubealign_services.algorithms.offline.rating_regression import RatingObjective
from kubealign_services.batch.packed import Batch
from kubealign_services.training.contract import CorruptCheckpoint, Head, UpdatePlan
from kubealign_services.training.files.hf_heads import HeadPooling
from kubealign_services.training.torch_backend.backend import TorchTrainingBackend
from kubealign_services.training.torch_backend.frozen_model import FrozenTorchModel
from kubealign_services.training.torch_backend.model.loading import load_model

SPEC = Trainer(optimizer=Optimizer(adam_w=AdamW(learning_rate=1e-2, weight_decay=0.1)))


def make(folder: Path, head: Head = Head.LANGUAGE_MODEL, **fields: Any) -> TorchTrainingBackend:
    return TorchTrainingBackend.create(folder, head, SPEC, total_updates=20, **fields)


def steps(
    backend: TorchTrainingBackend, batch: Batch, objective: Objective, seeds: range
) -> list[dict[str, float]]:
    return [backend.train_step(batch, objective, UpdatePlan(1, 2, seed=seed)) for seed in seeds]


def test_resuming_after_three_steps_equals_six_steps(
    tied_llama: Path, tmp_path: Path, make_batch: Callable[..., Batch], objective: Objective
) -> None:
    batch = make_batch(5, 8, 3, 6)
    straight = make(tied_llama)
    expected = steps(straight, batch, objective, range(6))
    first = make(tied_llama)
    actual = steps(first, batch, objective, range(3))
    assert sorted(first.save(tmp_path)) == ["shard-00000-of-00001.json", "shard-00000-of-00001.safetensors"]
    second = make(tied_llama)
    second.load(tmp_path)
    actual += steps(second, batch, objective, range(3, 6))
    assert actual == expected
    for (name, one), (_, other) in zip(second.snapshot(), straight.snapshot(), strict=True):
        assert torch.equal(one, other), name


def test_a_damaged_shard_is_refused_and_changes_nothing(
    llama: Path, tmp_path: Path, make_batch: Callable[..., Batch], objective: Objective
) -> None:
    saved = make(llama)
    steps(saved, make_batch(5, 8), objective, range(1))
    saved.save(tmp_path)
    fresh = make(llama)
    before = {name: tensor.clone() for name, tensor in fresh.snapshot()}
    tensors, description = (
        tmp_path / "shard-00000-of-00001.safetensors",
        tmp_path / "shard-00000-of-00001.json",
    )
    full, text = tensors.read_bytes(), description.read_text()

    def refuses(says: str) -> None:
        with pytest.raises(CorruptCheckpoint, match=says):
            fresh.load(tmp_path)
        assert all(torch.equal(tensor, before[name]) for name, tensor in fresh.snapshot())
        assert fresh.updates == 0
        tensors.write_bytes(full)
        description.write_text(text)

    tensors.write_bytes(full[:-7])
    refuses(r"00001\.safetensors is not as it was written")
    tensors.write_bytes(full[:-7] + bytes([full[-7] ^ 1]) + full[-6:])
    refuses(r"00001\.safetensors is not as it was written")
    tensors.unlink()
    refuses(r"00001\.safetensors cannot be read")
    description.write_text(text.replace('"updates": 1', '"updates": 2'))
    refuses(r"00001\.json is not as it was written")
    description.write_text(text[: len(text) // 2])
    refuses(r"00001\.json cannot be read")
    description.unlink()
    refuses(r"00001\.json does not exist; the folder holds shard-00000-of-00001\.safetensors")
    fresh.load(tmp_path)
    assert fresh.updates == 1


def test_a_shard_that_cannot_be_written_is_named(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"absent/shard-00000-of-00001\.safetensors cannot be written"):
        make(llama).save(tmp_path / "absent")


def test_another_models_shard_is_refused(llama: Path, tied_llama: Path, tmp_path: Path) -> None:
    make(llama).save(tmp_path)
    with pytest.raises(CorruptCheckpoint, match=r"of another model: backbone\.lm_head\.weight differ"):
        make(tied_llama).load(tmp_path)


@pytest.mark.parametrize("name", ["llama", "tied_llama"])
def test_an_exported_policy_loads_and_computes_the_same(
    name: str,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    make_batch: Callable[..., Batch],
    objective: Objective,
) -> None:
    source = request.getfixturevalue(name)
    (source / "tokenizer_config.json").write_text("{}")
    backend = make(source)
    batch = make_batch(5, 8)
    steps(backend, batch, objective, range(2))
    folder = tmp_path / "result"
    backend.export(folder)
    backend.export(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["result"]
    assert (folder / "tokenizer_config.json").read_text() == "{}"
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        logprobs = model(batch.tokens[None, 5:].long()).logits[0].log_softmax(-1)[:-1]
    expected = backend.forward(batch, frozenset({"logprobs"}))["logprobs"][6:]
    torch.testing.assert_close(
        logprobs.gather(-1, batch.tokens[6:, None].long())[:, 0], expected, atol=1e-5, rtol=1e-5
    )
    # The stream has the names and bytes of the file, tied weights once.
    file = load_file(folder / "model.safetensors")
    stream = dict(backend.snapshot())
    assert stream.keys() == file.keys() and ("lm_head.weight" in stream) == (name == "llama")
    assert all(torch.equal(tensor, file[key]) for key, tensor in stream.items())


@pytest.mark.parametrize("source", ["llama", "reward_llama"])
def test_an_exported_reward_model_is_a_classifier(
    source: str, request: pytest.FixtureRequest, tmp_path: Path, make_batch: Callable[..., Batch]
) -> None:
    backend = make(request.getfixturevalue(source), Head.SCORE, seed=3, pooling=HeadPooling("ResponseSum"))
    batch = make_batch(5, 8)
    expected = backend.forward(batch, frozenset({"values"}))["values"]
    backend.export(tmp_path / "result")
    config = json.loads((tmp_path / "result" / "config.json").read_text())
    assert config["kubealign_pooling"] == "ResponseSum" and config["pad_token_id"] is not None
    assert config["architectures"] == ["LlamaForSequenceClassification"]
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "result").eval()
    assert model.config.num_labels == 1
    with torch.no_grad():
        score = model(batch.tokens[None, 5:].long(), attention_mask=torch.ones(1, 8)).logits
    torch.testing.assert_close(score[0, 0], expected[-1], atol=1e-5, rtol=1e-5)
    frozen = FrozenTorchModel.load(tmp_path / "result", Head.SCORE, Precision.FLOAT32, 100)
    assert frozen.pooling == HeadPooling("ResponseSum")
    torch.testing.assert_close(frozen.forward(batch, frozenset({"values"}))["values"], expected)
    critic = load_model(tmp_path / "result", Head.VALUE)
    assert critic.score is not None and not critic.score.weight.any()


def test_several_scores_are_trained_saved_and_exported_under_their_names(
    llama: Path, tmp_path: Path, make_batch: Callable[..., Batch]
) -> None:
    names = ("good", "long", "kind")
    objective = RatingObjective(RewardModelSpec(language_model_coefficient=0.1), names)
    batch = make_batch(5, 8, 3)
    batch.token_columns["loss_mask"] = (batch.positions > 0).to(torch.uint8)
    batch.sequence_columns["ratings"] = torch.tensor([[1.0, 2, 3], [4, math.nan, 0], [2, 1, math.nan]])
    backend = make(llama, Head.SCORE, seed=3, pooling=HeadPooling("LastToken"), scores=names)
    metrics = [backend.train_step(batch, objective, UpdatePlan(1, 3, seed=1)) for _ in range(3)]
    assert metrics[-1]["rm/loss"] < metrics[0]["rm/loss"]
    assert {f"rm/absolute_error/{name}" for name in names} <= metrics[0].keys()

    (tmp_path / "shard").mkdir()
    backend.save(tmp_path / "shard")
    again = make(llama, Head.SCORE, seed=4, pooling=HeadPooling("LastToken"), scores=names)
    again.load(tmp_path / "shard")
    backend.export(tmp_path / "result")
    expected = backend.forward(batch, frozenset({"values"}))["values"]
    assert torch.equal(again.forward(batch, frozenset({"values"}))["values"], expected)
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "result").eval()
    assert model.config.id2label == dict(enumerate(names)) and model.config.label2id["kind"] == 2
    with torch.no_grad():
        scores = [
            model(tokens[None].long(), attention_mask=torch.ones(1, len(tokens))).logits[0]
            for tokens in batch.tokens.split(batch.lengths.tolist())
        ]
    last = batch.cu_seqlens[1:].long() - 1
    torch.testing.assert_close(torch.stack(scores), expected[last], atol=1e-5, rtol=1e-5)


def test_a_critic_exports_its_head(llama: Path, tmp_path: Path, make_batch: Callable[..., Batch]) -> None:
    backend = make(llama, Head.VALUE)
    with torch.no_grad():
        assert backend.model.score is not None
        backend.model.score.weight.fill_(0.25)
    backend.export(tmp_path / "result")
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "result")
    assert torch.equal(model.score.weight, torch.full((1, 32), 0.25))


def test_experts_are_streamed_under_checkpoint_names(tmp_path: Path, save_model: Callable[..., Path]) -> None:
    config = Qwen3MoeConfig(
        vocab_size=41, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
    )  # fmt: skip
    folder = save_model(config, tmp_path)
    file = load_file(folder / "model.safetensors")
    stream = dict(make(folder).snapshot())
    assert stream.keys() == file.keys() and any("experts.3.up_proj" in key for key in stream)
    assert all(torch.equal(tensor, file[key]) for key, tensor in stream.items())
