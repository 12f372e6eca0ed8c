"""Adapters above a base in NF4: the same as above the dequantised base, from loading to exports."""

# mypy: disable-error-code="no-untyped-call"
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from torch import nn
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig, Qwen3MoeConfig

from kubealign.planning.machine import Device
from kubealign.planning.memory.optimizer_states import torch_state_bytes
from kubealign.planning.memory.quantized_base import BLOCK_SIZE as PLANNED_BLOCK_SIZE
from kubealign.planning.memory.quantized_base import quantized_base
from kubealign.planning.memory.trainer import TrainedModel, trainer_memory
from kubealign.planning.model import parameter_counts
from kubealign.planning.model.shape import parse_model_shape
from kubealign.planning.workload import Workload
from kubealign.spec.sections.precision import Precision
from kubealign.spec.sections.training import (
    AdamW,
    Backend,
    BaseQuantization,
    Lora,
    LoraTargetLayers,
    Nf4Quantization,
    Optimizer,
    TorchBackendSpec,
    Trainer,
)
from kubealign_services.algorithms.contract import Objective
from kubealign_services.batch.packed import Batch
from kubealign_services.training.adapters import quantization as quantization_module
from kubealign_services.training.adapters.quantization import BLOCK_SIZE, QuantizationNotInstalled
from kubealign_services.training.contract import CorruptCheckpoint, Head, UpdatePlan
from kubealign_services.training.torch_backend.backend import TorchTrainingBackend
from kubealign_services.training.torch_backend.model import nf4_linear
from kubealign_services.training.torch_backend.model.loading import load_model
from kubealign_services.training.torch_backend.model.lora import adapted_layers
from kubealign_services.training.torch_backend.model.nf4_linear import Nf4Linear, quantize_layers
from support.slow_nf4 import round_to_nf4

LOGPROBS = frozenset({"logprobs"})
LAYERS = 2
CONFIG = LlamaConfig(
    vocab_size=41, hidden_size=64, intermediate_size=128, num_hidden_layers=LAYERS, num_attention_heads=4,
    num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.1, attention_bias=True,
)  # fmt: skip


def lora(double: bool = True, dora: bool = False) -> Lora:
    return Lora(rank=4, alpha=8, dora=dora, quantization=nf4(double))


def nf4(double: bool = True) -> BaseQuantization:
    return BaseQuantization(nf4=Nf4Quantization(double_quantization=double))


def plain(adapter: Lora) -> Lora:
    return adapter.model_copy(update={"quantization": None})


def make(
    folder: Path, adapter: Lora, head: Head = Head.LANGUAGE_MODEL, **fields: Any
) -> TorchTrainingBackend:
    spec = Trainer(
        backend=Backend(torch=TorchBackendSpec(**fields)),
        optimizer=Optimizer(adam_w=AdamW(learning_rate=1e-2)),
        lora=adapter,
    )
    return TorchTrainingBackend.create(folder, head, spec, total_updates=20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(CONFIG)
    for name, parameter in model.named_parameters():
        if name.endswith(".bias"):
            nn.init.normal_(parameter, std=0.1)
    path: Path = tmp_path_factory.mktemp("wide")
    model.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def rounded_folder(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model with the matrices of its blocks rounded to NF4, without double quantisation, by the
    implementation of the tests.
    """
    model = AutoModelForCausalLM.from_pretrained(folder)
    for module in model.model.layers.modules():
        if isinstance(module, nn.Linear):
            module.weight.data = round_to_nf4(module.weight.data)
    path: Path = tmp_path_factory.mktemp("rounded")
    model.save_pretrained(path)
    return path


@pytest.mark.parametrize("dora", [False, True], ids=["lora", "dora"])
@pytest.mark.parametrize("checkpointing", [False, True], ids=["plain", "checkpointing"])
def test_training_equals_that_above_the_dequantised_weights(
    checkpointing: bool,
    dora: bool,
    folder: Path,
    rounded_folder: Path,
    make_batch: Callable[..., Batch],
    objective: Objective,
) -> None:
    adapter, batch = lora(double=False, dora=dora), make_batch(5, 8, 3, 6)
    quantised = make(folder, adapter, gradient_checkpointing=checkpointing)
    dense = make(rounded_folder, plain(adapter), gradient_checkpointing=checkpointing)
    assert quantised.model.attention_cost == dense.model.attention_cost
    first = quantised.forward(batch, LOGPROBS)["logprobs"]
    torch.testing.assert_close(first, dense.forward(batch, LOGPROBS)["logprobs"], atol=1e-5, rtol=1e-5)
    # The rounding matters: above the original weights the outputs differ.
    original = make(folder, plain(adapter)).forward(batch, LOGPROBS)["logprobs"]
    assert (first - original).abs().max() > 0.01
    grads: dict[TorchTrainingBackend, dict[str, torch.Tensor]] = {}
    for backend in (quantised, dense):

        def keep(*_: Any, backend: TorchTrainingBackend = backend) -> None:
            grads[backend] = {
                name: parameter.grad.clone()
                for name, parameter in backend.model.named_parameters()
                if parameter.grad is not None
            }

        backend._optimizer.register_step_pre_hook(keep)
    for seed in range(3):
        plan = UpdatePlan(1, 4, seed)
        metrics = [backend.train_step(batch, objective, plan) for backend in (quantised, dense)]
        assert metrics[0] == pytest.approx(metrics[1], abs=1e-5, rel=1e-5)
        assert len(grads[dense]) == (3 if dora else 2) * 7 * LAYERS
        for name, grad in grads[dense].items():
            torch.testing.assert_close(grads[quantised][name], grad, atol=1e-5, rtol=1e-4, msg=name)
    # The reference, with the adapter off, is the quantised base.
    base = quantised.base_forward(batch, LOGPROBS)["logprobs"]
    torch.testing.assert_close(base, first, atol=1e-5 if dora else 0, rtol=0)
    weights = dict(quantised.snapshot())
    for name, tensor in dense.snapshot():
        torch.testing.assert_close(weights.pop(name), tensor, atol=1e-4, rtol=1e-4, msg=name)
    assert not weights


def test_a_critic_has_a_quantised_trunk(
    folder: Path, rounded_folder: Path, make_batch: Callable[..., Batch]
) -> None:
    batch = make_batch(5, 8)
    critics = [
        make(folder, lora(double=False), Head.VALUE),
        make(rounded_folder, plain(lora(double=False)), Head.VALUE),
    ]
    for critic in critics:
        assert critic.model.score is not None
        nn.init.ones_(critic.model.score.weight)
    values = [critic.forward(batch, frozenset({"values"}))["values"] for critic in critics]
    assert values[0].abs().max() > 0.1
    torch.testing.assert_close(values[0], values[1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("precision", [Precision.BFLOAT16, Precision.FLOAT16])
def test_sixteen_bit_arithmetic_has_weights_rounded_in_it(
    precision: Precision, folder: Path, make_batch: Callable[..., Batch], objective: Objective
) -> None:
    backend = make(folder, lora(), precision=precision)
    batch = make_batch(5, 8, 3, 6)
    losses = [backend.train_step(batch, objective, UpdatePlan(1, 4, seed))["loss"] for seed in range(4)]
    assert losses[-1] < losses[0] - 0.3, losses
    wide = make(folder, lora())
    expected = wide.base_forward(batch, LOGPROBS)["logprobs"]
    assert (backend.base_forward(batch, LOGPROBS)["logprobs"] - expected).abs().max() < 0.1
    for layer in (module for module in backend.model.modules() if isinstance(module, Nf4Linear)):
        assert layer.weight.dtype is getattr(torch, precision.dtype_name)


def test_a_checkpoint_holds_the_adapter_and_resumes_exactly(
    folder: Path, tmp_path: Path, make_batch: Callable[..., Batch], objective: Objective
) -> None:
    batch = make_batch(5, 8, 3, 6)
    backend = make(folder, lora())

    def steps(trained: TorchTrainingBackend, seeds: range) -> list[dict[str, float]]:
        return [trained.train_step(batch, objective, UpdatePlan(1, 2, seed)) for seed in seeds]

    steps(backend, range(2))
    names = backend.save(tmp_path)
    size = sum((tmp_path / name).stat().st_size for name in names)
    assert size < 16 * sum(p.numel() for p in backend.model.parameters() if p.requires_grad) + 2**16
    expected = steps(backend, range(2, 4))
    again = make(folder, lora())
    again.load(tmp_path)
    assert steps(again, range(2, 4)) == expected
    for other in (plain(lora()), lora(double=False)):
        with pytest.raises(CorruptCheckpoint, match=r"is of an adapter with lora .*; this job trains"):
            make(folder, other).load(tmp_path)


def test_exports_are_the_dequantised_base_with_the_adapter(
    folder: Path, rounded_folder: Path, tmp_path: Path, make_batch: Callable[..., Batch], objective: Objective
) -> None:
    batch = make_batch(9)
    backend = make(folder, lora(double=False))
    for seed in range(3):
        backend.train_step(batch, objective, UpdatePlan(1, 1, seed))
    backend.export(tmp_path / "result")
    expected = backend.forward(batch, LOGPROBS)["logprobs"][1:]
    tokens = batch.tokens.long()

    def logprobs(model: Any) -> torch.Tensor:
        with torch.no_grad():
            every = model(tokens[None]).logits[0].log_softmax(-1)[:-1]
        return every.gather(-1, tokens[1:, None])[:, 0]

    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "result")
    torch.testing.assert_close(logprobs(merged), expected, atol=1e-5, rtol=1e-5)
    # The adapter belongs to the dequantised weights too.
    base = AutoModelForCausalLM.from_pretrained(rounded_folder)
    adapted = PeftModel.from_pretrained(base, tmp_path / "result" / "adapter")
    torch.testing.assert_close(logprobs(adapted), expected, atol=1e-5, rtol=1e-5)


def test_an_exported_adapter_fits_the_base_that_transformers_quantises(
    folder: Path, tmp_path: Path, make_batch: Callable[..., Batch], objective: Objective
) -> None:
    batch = make_batch(9)
    backend = make(folder, lora())
    for seed in range(3):
        backend.train_step(batch, objective, UpdatePlan(1, 1, seed))
    backend.export(tmp_path / "result")
    theirs = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.float32,
    )
    base = AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=theirs, dtype=torch.float32, device_map="cpu"
    )
    # In evaluation mode bitsandbytes repacks the weights on some processors and computes in bf16.
    adapted = PeftModel.from_pretrained(base, tmp_path / "result" / "adapter").train()
    tokens = batch.tokens.long()
    with torch.no_grad():
        every = adapted(tokens[None]).logits[0].log_softmax(-1)[:-1]
    expected = backend.forward(batch, LOGPROBS)["logprobs"][1:]
    torch.testing.assert_close(every.gather(-1, tokens[1:, None])[:, 0], expected, atol=1e-5, rtol=1e-5)


def test_a_mixture_exports_quantised_layers_without_adapters_too(
    tmp_path: Path, save_model: Callable[..., Path], make_batch: Callable[..., Batch], objective: Objective
) -> None:
    """Train the queries' adapters of a mixture; the other quantised layers have none, experts and router stay
    as they are.
    """
    config = Qwen3MoeConfig(
        vocab_size=41, hidden_size=64, intermediate_size=128, moe_intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_experts=4, num_experts_per_tok=2,
        initializer_range=0.1,
    )  # fmt: skip
    folder = save_model(config, tmp_path / "mixture")
    queries = lora().model_copy(update={"targets": LoraTargetLayers(names=["q_proj"])})
    backend, batch = make(folder, queries), make_batch(9)
    names = [name for name, module in backend.model.named_modules() if isinstance(module, Nf4Linear)]
    assert [name.rpartition("self_attn.")[2] for name in names] == [
        "q_proj.base_layer", "k_proj", "v_proj", "o_proj"
    ]  # fmt: skip
    for seed in range(2):
        backend.train_step(batch, objective, UpdatePlan(1, 1, seed))
    backend.export(tmp_path / "result")
    result, original = (AutoModelForCausalLM.from_pretrained(path) for path in (tmp_path / "result", folder))
    tokens = batch.tokens.long()
    with torch.no_grad():
        every = result(tokens[None]).logits[0].log_softmax(-1)[:-1]
    expected = backend.forward(batch, LOGPROBS)["logprobs"][1:]
    torch.testing.assert_close(every.gather(-1, tokens[1:, None])[:, 0], expected, atol=1e-5, rtol=1e-5)
    before = original.state_dict()
    changed = {name for name, each in result.state_dict().items() if not torch.equal(each, before[name])}
    assert {name.split(".")[-2] for name in changed} == {"q_proj", "k_proj", "v_proj", "o_proj"}


def test_each_full_weight_is_freed_before_the_next_layer(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(folder, Head.LANGUAGE_MODEL)
    layers = [m for m in model.backbone.base_model.layers.modules() if isinstance(m, nn.Linear)]
    assert not layers[0].weight.untyped_storage().resizable()
    originals = [weakref.ref(layer.weight) for layer in layers]
    del layers
    alive = []
    quantize = nf4_linear.quantize_nf4

    def counted(*arguments: Any) -> Any:
        alive.append(sum(each() is not None for each in originals))
        return quantize(*arguments)

    monkeypatch.setattr(nf4_linear, "quantize_nf4", counted)
    quantize_layers(model.backbone, nf4())
    assert alive == list(range(7 * LAYERS, 0, -1))
    assert not any(each() is not None for each in originals)
    # The other weights are no views of the mapped checkpoint, which would stay in memory as a whole.
    assert all(each.untyped_storage().resizable() for each in model.parameters())


@pytest.mark.parametrize("double", [False, True])
@pytest.mark.parametrize("precision", [Precision.FLOAT32, Precision.FLOAT16])
def test_the_plan_knows_the_bytes_of_every_tensor(double: bool, precision: Precision, folder: Path) -> None:
    assert BLOCK_SIZE == PLANNED_BLOCK_SIZE
    adapter, shape = lora(double), parse_model_shape(CONFIG.to_dict(), "test")
    model = make(folder, adapter, precision=precision).model
    # The rotary frequencies are no weights.
    tensors = [*model.parameters(), *(b for name, b in model.named_buffers() if "inv_freq" not in name)]
    measured = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    adapted = parameter_counts.adapter(shape, adapter)
    planned = torch_state_bytes(
        parameter_counts.total(shape), adapted, precision, 1, quantized_base(shape, adapter)
    )
    # The plan leaves out the biases of the attention's output.
    size = 4 if precision is Precision.FLOAT32 else 2
    absent = size * (sum(p.numel() for p in AutoModelForCausalLM.from_pretrained(folder).parameters())
                     - parameter_counts.total(shape))  # fmt: skip
    assert planned["weights"] == measured - absent
    spec = Trainer(lora=adapter, backend=Backend(torch=TorchBackendSpec(precision=precision)))
    work = Workload(prompt=4, response=4, sequences=8, epochs=1, updates=1)
    assert trainer_memory(TrainedModel(shape, spec, work, Device.GPU)).parts["weights"] == planned["weights"]


def test_adapters_are_initialised_as_above_a_dense_base(folder: Path) -> None:
    quantised, dense = (make(folder, each) for each in (lora(), plain(lora())))
    pairs = zip(adapted_layers(quantised.model.backbone), adapted_layers(dense.model.backbone), strict=True)
    for (name, one), (other_name, other) in pairs:
        assert name == other_name
        assert torch.equal(one.lora_A["default"].weight, other.lora_A["default"].weight)


def test_a_missing_library_is_reported_before_the_model_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantization_module, "find_spec", lambda name: None)
    with pytest.raises(QuantizationNotInstalled, match=r"pip install 'kubealign\[bitsandbytes\]'"):
        make(tmp_path / "absent", lora())
