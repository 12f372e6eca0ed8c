"""LoRA on stacked experts: W_e + scale * B_e A_e in training, refit, checkpoints and exports, on one and two
ranks.
"""

# mypy: disable-error-code="no-untyped-call"
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from kubealign.spec.sections.engines import TorchEngineSpec
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
from kubealign_services.algorithms.offline.sft import CrossEntropyObjective
from kubealign_services.batch.packed import Batch, pack
from kubealign_services.generation.torch_engine.engine import TorchRolloutEngine
from kubealign_services.roles.rollout.weights import read_folder_weights
from kubealign_services.training.commands.rank_group import CommandGroup, Handlers
from kubealign_services.training.contract import Head, UpdatePlan
from kubealign_services.training.torch_backend.backend import TorchTrainingBackend
from kubealign_services.training.torch_backend.model.expert_lora import expert_adapters
from support.model_families import FAMILIES, ModelFamily, Oracle, other_model
from support.second_rank import two_ranks
from support.slow_experts import SlowExperts

pytestmark = pytest.mark.timeout(240)

LOGPROBS = frozenset({"logprobs"})
CPU = torch.device("cpu")
RANK, SCALE = 3, 4.0
EXPERTS = LoraTargetLayers(kind=LoraLayerKind.EXPERTS)
SOME = LoraTargetLayers(names=["q_proj", "experts.down_proj"])
ALL = LoraTargetLayers(names=["q_proj", "v_proj", "experts.gate_up_proj", "experts.down_proj"])
#: Further types with stacked experts.
OTHER_MIXTURES = (
    *("afmoe", "deepseek_v2", "deepseek_v3", "ernie4_5_moe", "flex_olmo", "glm4_moe", "hunyuan_v1_moe"),
    *("minimax_m2", "olmoe", "phimoe", "qwen2_moe"),
)
TARGETS = {"experts": EXPERTS, "some": SOME, "all": ALL}


def tiny(name: str) -> ModelFamily:
    family = FAMILIES[name]
    return replace(family, fields=family.fields | {"norm_topk_prob": True})


def demonstrations() -> Batch:
    generator = torch.Generator().manual_seed(3)
    rows = [torch.randint(0, 256, (length,), generator=generator).tolist() for length in (14, 8, 19, 7)]
    batch = pack(rows, [str(i) for i in range(len(rows))])
    batch.token_columns["loss_mask"] = (batch.positions > 1).to(torch.uint8)
    return batch


def trainer(targets: LoraTargetLayers, **fields: Any) -> Trainer:
    return Trainer(
        backend=Backend(torch=TorchBackendSpec(**fields)),
        optimizer=Optimizer(adam_w=AdamW(learning_rate=1e-2)),
        lora=Lora(rank=RANK, alpha=SCALE * RANK, targets=targets),
    )


def backend_of(folder: Path, targets: LoraTargetLayers = EXPERTS, **fields: Any) -> TorchTrainingBackend:
    return TorchTrainingBackend.create(folder, Head.LANGUAGE_MODEL, trainer(targets, **fields), 20)


def train(backend: TorchTrainingBackend, steps: int = 3) -> list[float]:
    batch = demonstrations()
    plan = UpdatePlan(1, len(batch), seed=1)
    return [backend.train_step(batch, CrossEntropyObjective(), plan)["loss"] for _ in range(steps)]


def logprobs(backend: TorchTrainingBackend) -> Tensor:
    batch = demonstrations()
    return backend.forward(batch, LOGPROBS)["logprobs"] * batch.token("loss_mask")


def exported_logprobs(folder: Path) -> Tensor:
    """Return the same of transformers' model in a folder, in float64."""
    oracle, batch = Oracle(folder), demonstrations()
    rows = batch.tokens.split(batch.lengths.tolist())
    columns = [torch.tensor([0.0, *oracle.logprobs(row.tolist())], dtype=torch.float64) for row in rows]
    return torch.cat(columns) * batch.token("loss_mask")


@pytest.mark.parametrize("checkpointing", [False, True], ids=["stored", "recomputed"])
@pytest.mark.parametrize("name", ["qwen3_moe", "mixtral"])
def test_values_and_gradients_are_those_of_the_formula(
    name: str, checkpointing: bool, tmp_path: Path
) -> None:
    folder = tiny(name).save(tmp_path / "model")
    model = backend_of(folder, gradient_checkpointing=checkpointing).model.double().train()
    model.backbone.set_experts_implementation("eager")
    slow, generator = SlowExperts(folder), torch.Generator().manual_seed(1)
    slow.model.requires_grad_(False)
    factors: dict[str, tuple[Tensor, Tensor]] = {}
    for weight_name, adapter in expert_adapters(model.backbone):
        assert not adapter.lora_B.any() and adapter.lora_A.std() > 0.01
        with torch.no_grad():
            adapter.lora_B.copy_(torch.randn(adapter.lora_B.shape, generator=generator) * 0.1)
        down, up = (each.detach().clone().requires_grad_() for each in (adapter.lora_A, adapter.lora_B))
        factors[weight_name] = down, up
        owner, _, key = weight_name.rpartition(".")
        module = slow.model.get_submodule(owner)
        plain = module._parameters[key]
        stacked = [plain[e] + SCALE * up[e] @ down[e] for e in range(len(plain))]
        module.__dict__[key] = torch.stack(stacked)
    assert len(factors) == 4
    batch = demonstrations()
    rows = [row.tolist() for row in batch.tokens.split(batch.lengths.tolist())]
    zero = torch.zeros(1, dtype=torch.float64)
    expected = torch.cat([torch.cat([zero, slow.logprobs(row)]) for row in rows]) * batch.token("loss_mask")
    expected.sum().backward()
    actual = model(model.pack(batch, CPU), LOGPROBS)["logprobs"]
    torch.testing.assert_close(actual, expected, atol=1e-6, rtol=0)
    actual.sum().backward()
    for weight_name, adapter in expert_adapters(model.backbone):
        down, up = factors[weight_name]
        torch.testing.assert_close(adapter.lora_A.grad, down.grad, atol=5e-6, rtol=1e-5)
        torch.testing.assert_close(adapter.lora_B.grad, up.grad, atol=5e-6, rtol=1e-5)
        assert up.grad is not None and up.grad.abs().max() > 1e-3
    trained = {key for key, weight in model.named_parameters() if weight.requires_grad}
    assert len(trained) == 8 and all(".expert_adapters." in key for key in trained)


@pytest.mark.parametrize("targets", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("name", ["qwen3_moe", "mixtral"])
def test_refit_export_and_peft_give_the_trained_model(
    name: str, targets: LoraTargetLayers, tmp_path: Path
) -> None:
    folder = tiny(name).save(tmp_path / "model")
    backend = backend_of(folder, targets)
    before = logprobs(backend)
    losses = train(backend)
    assert losses[-1] < losses[0] - 0.02
    after = logprobs(backend)
    assert (after - before).abs().max() > 0.05
    batch = demonstrations()
    base = backend.base_forward(batch, LOGPROBS)["logprobs"] * batch.token("loss_mask")
    assert torch.equal(base, before) and torch.equal(logprobs(backend), after)

    backend.export(tmp_path / "result")
    torch.testing.assert_close(exported_logprobs(tmp_path / "result"), after.double(), atol=1e-4, rtol=0)

    engine = TorchRolloutEngine.create(folder, TorchEngineSpec(max_sequences=4))
    engine.refit(load_file(folder / "model.safetensors").items(), 0)
    sequence = batch.tokens[:14].tolist()
    for version in (1, 2):
        snapshot = backend.adapter()
        assert snapshot is not None and snapshot.scale == SCALE
        engine.adapt([(key, tensor.clone()) for key, tensor in snapshot.tensors], snapshot.scale, version)
        expected = logprobs(backend)[2:14].tolist()
        assert engine.sequence_logprobs(sequence)[1:] == pytest.approx(expected, abs=1e-4)
        train(backend)
    # All weights with the adapter merged in, as a first refit sends them.
    engine.refit(((key, tensor.clone()) for key, tensor in backend.snapshot()), 3)
    assert engine.sequence_logprobs(sequence)[1:] == pytest.approx(logprobs(backend)[2:14].tolist(), abs=1e-4)

    check_peft(folder, tmp_path / "result")


def check_peft(folder: Path, result: Path) -> None:
    """Compare peft's model of the base and the exported adapter with the exported model."""
    from peft import PeftModel

    make: Callable[..., Any] = AutoModelForCausalLM.from_pretrained
    merged = make(result, attn_implementation="eager", dtype=torch.float32).eval()
    plain = make(folder, attn_implementation="eager", dtype=torch.float32).eval()
    tokens = torch.arange(40)[None] * 5
    with torch.no_grad():
        expected, before = merged(tokens).logits, plain(tokens).logits
        actual = PeftModel.from_pretrained(plain, str(result / "adapter")).eval()(tokens).logits
    torch.testing.assert_close(actual, expected, atol=1e-4, rtol=0)
    assert (actual - before).abs().max() > 0.05


def test_a_checkpoint_continues(tmp_path: Path) -> None:
    folder = tiny("qwen3_moe").save(tmp_path / "model")
    first, second = backend_of(folder, ALL), backend_of(folder, ALL)
    train(first, 2)
    (tmp_path / "shard").mkdir()
    first.save(tmp_path / "shard")
    second.load(tmp_path / "shard")
    assert train(first, 2) == train(second, 2)
    assert torch.equal(logprobs(first), logprobs(second))


def test_unknown_experts_are_refused(tmp_path: Path) -> None:
    dense, mixture = (tiny_or(name).save(tmp_path / name) for name in ("llama", "mixtral"))
    with pytest.raises(ValueError, match=r"kind Experts: LlamaForCausalLM has stacked experts of no known"):
        backend_of(dense)
    names = LoraTargetLayers(names=["q_proj", "experts.w1"])
    with pytest.raises(ValueError, match=r"'experts.w1': Mixtral.* experts.down_proj, experts.gate_up_proj"):
        backend_of(mixture, names)


def tiny_or(name: str) -> ModelFamily:
    return FAMILIES[name] if name == "llama" else tiny(name)


@pytest.mark.parametrize("model_type", OTHER_MIXTURES)
def test_other_types(model_type: str, tmp_path: Path) -> None:
    folder = other_model(model_type).save(tmp_path / "model")
    backend = backend_of(folder)
    before = logprobs(backend)
    train(backend)
    after = logprobs(backend)
    assert (after - before).abs().max() > 0.01
    backend.export(tmp_path / "result")
    torch.testing.assert_close(exported_logprobs(tmp_path / "result"), after.double(), atol=1e-4, rtol=0)
    engine = TorchRolloutEngine.create(folder, TorchEngineSpec(max_sequences=4))
    engine.refit(read_folder_weights(folder), 0)
    snapshot = backend.adapter()
    assert snapshot is not None
    engine.adapt(snapshot.tensors, snapshot.scale, 1)
    sequence = demonstrations().tokens[:14].tolist()
    assert engine.sequence_logprobs(sequence)[1:] == pytest.approx(after[2:14].tolist(), abs=1e-4)


def commands(folder: Path, rank: int, world_size: int) -> Handlers:
    backends: list[TorchTrainingBackend] = []

    def run(path: bytes) -> bytes:
        spec = trainer(ALL, microbatch_tokens=20, gradient_checkpointing=True)
        backends[:] = [
            TorchTrainingBackend.create(
                folder, Head.LANGUAGE_MODEL, spec, 20, rank=rank, world_size=world_size
            )
        ]
        losses = train(backends[0])
        batch = demonstrations()
        adapter = backends[0].adapter()
        assert adapter is not None
        tensors = dict(adapter.tensors) | dict(backends[0].snapshot())
        tensors["logprobs"] = backends[0].forward(batch, LOGPROBS)["logprobs"]
        tensors["base"] = backends[0].base_forward(batch, LOGPROBS)["logprobs"]
        if rank == 0:
            save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, path.decode())
        return json.dumps(losses).encode()

    return {"Run": run}


def test_two_ranks_train_the_same_adapter(tmp_path: Path) -> None:
    folder = tiny("mixtral").save(tmp_path / "model")
    two, one = str(tmp_path / "two"), str(tmp_path / "one")
    with two_ranks(commands, folder) as (group, handlers):
        losses = json.loads(group.run("Run", two.encode(), handlers))
    with CommandGroup(0, 1, None, 60) as group:
        expected = json.loads(group.run("Run", one.encode(), commands(folder, 0, 1)))
    assert losses == pytest.approx(expected, rel=1e-4)
    tensors = load_file(two)
    for key, tensor in load_file(one).items():
        torch.testing.assert_close(tensors[key], tensor, atol=1e-4, rtol=1e-3, msg=lambda m, k=key: k + m)
