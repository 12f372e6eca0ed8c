"""Adapters in the torch backend: placement, unchanged base weights, and gradients equal to peft's own."""

# mypy: disable-error-code="no-untyped-call"
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    GPT2Config,
    OPTConfig,
    Qwen3MoeConfig,
)

from kubealign.spec.sections.precision import Precision
from kubealign.spec.sections.training import (
    AdamW,
    Backend,
    Lora,
    LoraLayerKind,
    LoraTargetLayers,
    Optimizer,
    TorchBackendSpec,
    Trainer,
)
from kubealign_services.algorithms.contract import Objective
from kubealign_services.batch.packed import Batch
from kubealign_services.training.adapters.targets import select_target_layers
from kubealign_services.training.contract import CorruptCheckpoint, Head, UpdatePlan
from kubealign_services.training.files.hf_heads import HeadPooling
from kubealign_services.training.torch_backend.backend import TorchTrainingBackend
from kubealign_services.training.torch_backend.model.loading import load_model
from kubealign_services.training.torch_backend.model.lora import adapted_layers, add_adapters

LOGPROBS = frozenset({"logprobs"})
LORA = Lora(rank=4, alpha=8)
GPT2 = GPT2Config(vocab_size=41, n_embd=32, n_layer=1, n_head=4, n_positions=64, initializer_range=0.2)


def make(
    folder: Path,
    lora: Lora | None = LORA,
    head: Head = Head.LANGUAGE_MODEL,
    torch_spec: TorchBackendSpec | None = None,
    **fields: Any,
) -> TorchTrainingBackend:
    spec = Trainer(
        backend=Backend(torch=torch_spec or TorchBackendSpec()),
        optimizer=Optimizer(adam_w=AdamW(learning_rate=1e-2)),
        lora=lora,
    )
    return TorchTrainingBackend.create(folder, head, spec, total_updates=20, **fields)


def steps(
    backend: TorchTrainingBackend, batch: Batch, objective: Objective, seeds: range
) -> list[dict[str, float]]:
    return [backend.train_step(batch, objective, UpdatePlan(1, 2, seed=seed)) for seed in seeds]


@pytest.mark.parametrize("dora", [False, True])
def test_only_the_adapter_is_trained_and_can_be_disabled(
    dora: bool, tied_llama: Path, make_batch: Callable[..., Batch], objective: Objective
) -> None:
    plain = make(tied_llama, None)
    adapted = make(tied_llama, LORA.model_copy(update={"dora": dora}))
    batch = make_batch(5, 8, 3, 6)
    expected = plain.forward(batch, LOGPROBS)["logprobs"]
    first = adapted.forward(batch, LOGPROBS)["logprobs"]
    torch.testing.assert_close(first, expected, atol=1e-5 if dora else 0, rtol=0)
    before = {name: tensor.detach().clone() for name, tensor in adapted.model.named_parameters()}
    losses = [metrics["loss"] for metrics in steps(adapted, batch, objective, range(4))]
    assert losses[-1] < losses[0] - 0.05
    changed = {
        name for name, tensor in adapted.model.named_parameters() if not torch.equal(tensor, before[name])
    }
    assert changed and all(".lora_" in name for name in changed)
    assert len(changed) == (3 if dora else 2) * 14
    # A, B and magnitudes alone have moments.
    assert len(adapted._optimizer.state) == len(changed)
    assert torch.equal(adapted.base_forward(batch, LOGPROBS)["logprobs"], expected)
    later = adapted.forward(batch, LOGPROBS)["logprobs"]
    assert (later - expected).abs().max() > 0.01
    with pytest.raises(ValueError, match="no adapter to disable"):
        plain.base_forward(batch, LOGPROBS)


@pytest.mark.parametrize("dora", [False, True])
def test_gradients_match_peft(
    dora: bool, llama: Path, tmp_path: Path, make_batch: Callable[..., Batch], objective: Objective
) -> None:
    """Compare packed microbatches of the backend with peft's model, one sequence after another."""
    backend = make(
        llama, LORA.model_copy(update={"dora": dora}), torch_spec=TorchBackendSpec(microbatch_tokens=12)
    )
    batch = make_batch(5, 8, 3, 6)
    steps(backend, batch, objective, range(2))
    backend.export(tmp_path / "result")
    theirs = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(llama), tmp_path / "result" / "adapter", is_trainable=True
    )
    total = torch.zeros(())
    for start, end in zip(batch.cu_seqlens[:-1].tolist(), batch.cu_seqlens[1:].tolist(), strict=True):
        tokens = batch.tokens[start:end].long()
        logprobs = theirs(tokens[None]).logits[0].log_softmax(-1)[:-1]
        total = total - logprobs.gather(-1, tokens[1:, None]).sum()
    (total / (len(batch.tokens) - len(batch))).backward()
    expected = {
        name.removeprefix("base_model.model."): parameter.grad
        for name, parameter in theirs.named_parameters()
        if parameter.requires_grad
    }
    grads: dict[str, torch.Tensor] = {}

    def keep(*_: Any) -> None:
        grads.update(
            (name.removeprefix("backbone."), parameter.grad.clone())
            for name, parameter in backend.model.named_parameters()
            if parameter.grad is not None
        )

    backend._optimizer.register_step_pre_hook(keep)
    bound = backend._optimizer_spec.gradient_clip_norm
    metrics = backend.train_step(batch, objective, UpdatePlan(1, 4, seed=0))
    assert metrics["gradient_norm"] == pytest.approx(
        sum(float(grad.square().sum()) for grad in expected.values() if grad is not None) ** 0.5, rel=1e-4
    )
    shrunk = min(1.0, bound / metrics["gradient_norm"])
    assert grads.keys() == expected.keys() and grads
    for name, grad in expected.items():
        assert grad is not None
        torch.testing.assert_close(grads[name], grad * shrunk, atol=1e-6, rtol=1e-4, msg=name)


def test_targets_select_layers_by_kind_and_name(
    llama: Path, tmp_path: Path, save_model: Callable[..., Path]
) -> None:
    def ends(folder: Path, targets: LoraTargetLayers) -> set[str]:
        return {
            name.rsplit(".", 1)[-1]
            for name in select_target_layers(load_model(folder, Head.LANGUAGE_MODEL).backbone, targets)
        }

    attention, mlp = {"q_proj", "k_proj", "v_proj", "o_proj"}, {"gate_proj", "up_proj", "down_proj"}
    assert ends(llama, LoraTargetLayers(kind=LoraLayerKind.ALL_LINEAR)) == attention | mlp
    assert ends(llama, LoraTargetLayers(kind=LoraLayerKind.ATTENTION)) == attention
    assert ends(llama, LoraTargetLayers(kind=LoraLayerKind.MLP)) == mlp
    assert ends(llama, LoraTargetLayers(names=["q_proj", "1.mlp.up_proj"])) == {"q_proj", "up_proj"}
    # Feed-forward layers directly in the block; a suffix that two kinds share.
    opt = save_model(
        OPTConfig(
            vocab_size=41, hidden_size=32, num_hidden_layers=1, ffn_dim=64, num_attention_heads=4,
            max_position_embeddings=64, word_embed_proj_dim=32,
        ),
        tmp_path / "opt",
    )  # fmt: skip
    assert ends(opt, LoraTargetLayers(kind=LoraLayerKind.MLP)) == {"fc1", "fc2"}
    gpt2 = save_model(GPT2, tmp_path / "gpt2")
    model = load_model(gpt2, Head.LANGUAGE_MODEL).backbone
    actual = select_target_layers(model, LoraTargetLayers(kind=LoraLayerKind.ATTENTION))
    assert actual == ["transformer.h.0.attn.c_attn", "transformer.h.0.attn.c_proj"]
    with pytest.raises(ValueError, match=r"names 'query', 'lm_head': no linear.* end in .*k_proj, o_proj"):
        make(llama, Lora(targets=LoraTargetLayers(names=["q_proj", "query", "lm_head"])))


def test_stacked_experts_get_no_adapter(tmp_path: Path, save_model: Callable[..., Path]) -> None:
    config = Qwen3MoeConfig(
        vocab_size=41, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
    )  # fmt: skip
    folder = save_model(config, tmp_path)
    backend = make(folder)
    assert {name.rsplit(".", 1)[-1] for name, _ in adapted_layers(backend.model.backbone)} == {
        "q_proj", "k_proj", "v_proj", "o_proj",
    }  # fmt: skip
    file, stream = load_file(folder / "model.safetensors"), dict(backend.snapshot())
    assert stream.keys() == file.keys() and all(
        torch.equal(tensor, file[key]) for key, tensor in stream.items()
    )
    with pytest.raises(
        ValueError, match="kind Mlp: Qwen3MoeForCausalLM has linear layers that end in k_proj"
    ):
        make(folder, Lora(targets=LoraTargetLayers(kind=LoraLayerKind.MLP)))


def test_the_initial_adapter_depends_on_the_seed(llama: Path) -> None:
    def downs(**fields: Any) -> list[torch.Tensor]:
        return [layer.lora_A["default"].weight for _, layer in adapted_layers(make(llama, **fields).model)]

    one, same, other, critic = downs(seed=3), downs(seed=3), downs(seed=4), downs(seed=3, head=Head.VALUE)
    assert all(torch.equal(a, b) for a, b in zip(one, same, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(one, critic, strict=True))
    model, state = load_model(llama, Head.LANGUAGE_MODEL), torch.get_rng_state()
    add_adapters(model, LORA, 1)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(("dora", "dropout"), [(False, 0.0), (True, 0.0), (False, 0.3)])
def test_resuming_equals_not_stopping_and_shards_hold_only_the_adapter(
    dora: bool,
    dropout: float,
    tied_llama: Path,
    tmp_path: Path,
    make_batch: Callable[..., Batch],
    objective: Objective,
) -> None:
    lora = LORA.model_copy(update={"dora": dora, "dropout": dropout})
    batch = make_batch(5, 8, 3, 6)
    straight = make(tied_llama, lora)
    expected = steps(straight, batch, objective, range(6))
    first = make(tied_llama, lora)
    actual = steps(first, batch, objective, range(3))
    first.save(tmp_path)
    values = load_file(tmp_path / "shard-00000-of-00001.safetensors")
    assert {name.split(".")[0] for name in values} == {"weight", "step", "exp_avg", "exp_avg_sq", "rng"}
    assert all(".lora_" in name or name == "rng.cpu" for name in values)
    second = make(tied_llama, lora, seed=9)
    second.load(tmp_path)
    actual += steps(second, batch, objective, range(3, 6))
    assert actual == expected
    for (name, one), (_, other) in zip(second.snapshot(), straight.snapshot(), strict=True):
        assert torch.equal(one, other), name


def test_a_shard_of_another_adapter_is_refused(llama: Path, tmp_path: Path) -> None:
    saved = make(llama)
    saved.save(tmp_path)
    for change in (
        {"rank": 8},
        {"alpha": 16.0},
        {"dora": True},
        {"targets": LoraTargetLayers(kind=LoraLayerKind.MLP)},
    ):
        other = make(llama, LORA.model_copy(update=change))
        before = {name: tensor.clone() for name, tensor in other.model.named_parameters()}
        with pytest.raises(
            CorruptCheckpoint, match=r'is of an adapter with lora {"rank": 4.*this job trains'
        ):
            other.load(tmp_path)
        assert all(torch.equal(tensor, before[name]) for name, tensor in other.model.named_parameters())
    with pytest.raises(CorruptCheckpoint, match=r"is of an adapter .*; this job trains all weights"):
        make(llama, None).load(tmp_path)
    make(llama, LORA.model_copy(update={"dropout": 0.5})).load(tmp_path)


@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize("name", ["llama", "tied_llama", "gpt2"])
def test_export_writes_the_merged_model_and_a_peft_adapter(
    name: str,
    dora: bool,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    save_model: Callable[..., Path],
    make_batch: Callable[..., Batch],
    objective: Objective,
) -> None:
    source = save_model(GPT2, tmp_path / "gpt2") if name == "gpt2" else request.getfixturevalue(name)
    targets = LoraTargetLayers(kind=LoraLayerKind.ATTENTION)
    backend = make(source, LORA.model_copy(update={"dora": dora, "targets": targets}))
    batch = make_batch(5, 8)
    steps(backend, batch, objective, range(3))
    expected = backend.forward(batch, LOGPROBS)["logprobs"][6:]
    backend.export(tmp_path / "result")

    def logprobs(model: Any) -> torch.Tensor:
        with torch.no_grad():
            actual = model(batch.tokens[None, 5:].long()).logits[0].log_softmax(-1)[:-1]
        return actual.gather(-1, batch.tokens[6:, None].long())[:, 0]

    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "result").eval()
    torch.testing.assert_close(logprobs(merged), expected, atol=1e-5, rtol=1e-5)
    base = AutoModelForCausalLM.from_pretrained(source).eval()
    assert (logprobs(base) - expected).abs().max() > 1e-3
    theirs = PeftModel.from_pretrained(base, tmp_path / "result" / "adapter").eval()
    torch.testing.assert_close(logprobs(theirs), expected, atol=1e-5, rtol=1e-5)
    assert theirs.peft_config["default"].base_model_name_or_path == str(source)
    # The stream has the names of the file, and the bytes of the merged weights.
    file, stream = load_file(tmp_path / "result" / "model.safetensors"), dict(backend.snapshot())
    assert stream.keys() == file.keys() == load_file(source / "model.safetensors").keys()
    assert all(torch.equal(tensor, file[key]) for key, tensor in stream.items())


@pytest.mark.parametrize("source", ["llama", "reward_llama"])
def test_a_reward_model_exports_a_merged_classifier_and_an_adapter_with_its_head(
    source: str, request: pytest.FixtureRequest, tmp_path: Path, make_batch: Callable[..., Batch]
) -> None:
    folder = request.getfixturevalue(source)
    backend = make(folder, head=Head.SCORE, seed=3, pooling=HeadPooling("ResponseSum"))
    assert {
        name for name, p in backend.model.named_parameters() if p.requires_grad and "lora_" not in name
    } == {"score.weight"}
    with torch.no_grad():
        for _, layer in adapted_layers(backend.model):
            layer.lora_B["default"].weight.normal_(std=0.1)
        assert backend.model.score is not None
        backend.model.score.weight.add_(0.5)
    batch = make_batch(5, 8)
    expected = backend.forward(batch, frozenset({"values"}))["values"]
    backend.export(tmp_path / "result")

    def score(model: Any) -> torch.Tensor:
        with torch.no_grad():
            actual: torch.Tensor = model(
                batch.tokens[None, 5:].long(), attention_mask=torch.ones(1, 8)
            ).logits
        return actual[0, 0]

    merged = AutoModelForSequenceClassification.from_pretrained(tmp_path / "result").eval()
    torch.testing.assert_close(score(merged), expected[-1], atol=1e-5, rtol=1e-5)
    base = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=1, pad_token_id=0).eval()
    theirs = PeftModel.from_pretrained(base, tmp_path / "result" / "adapter").eval()
    torch.testing.assert_close(score(theirs), expected[-1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dora", [False, True])
def test_bf16_keeps_the_frozen_weights_in_bf16(
    dora: bool, llama: Path, make_batch: Callable[..., Batch], objective: Objective
) -> None:
    half = make(
        llama,
        LORA.model_copy(update={"dora": dora}),
        torch_spec=TorchBackendSpec(precision=Precision.BFLOAT16, gradient_checkpointing=True),
    )
    for name, parameter in half.model.named_parameters():
        assert parameter.dtype == (torch.float32 if ".lora_" in name else torch.bfloat16), name
    batch = make_batch(5, 8, 3, 6)
    plain = make(llama, None, torch_spec=TorchBackendSpec(precision=Precision.BFLOAT16))
    expected = plain.forward(batch, LOGPROBS)["logprobs"]
    assert torch.equal(half.base_forward(batch, LOGPROBS)["logprobs"], expected)
    losses = [metrics["loss"] for metrics in steps(half, batch, objective, range(6))]
    assert losses[-1] < losses[0] - 0.1
    assert torch.equal(half.base_forward(batch, LOGPROBS)["logprobs"], expected)
    snapshot = half.adapter()
    assert snapshot is not None and {tensor.dtype for _, tensor in snapshot.tensors} == {torch.bfloat16}
