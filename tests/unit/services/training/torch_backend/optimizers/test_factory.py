"""Selection of the update rule of each weight."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import Qwen3MoeConfig

from kubealign.spec.sections.optimizers import MomentStates, Muon, OptimizerDevice
from kubealign.spec.sections.training import AdamW, Lora, LoraLayerKind, LoraTargetLayers, Optimizer
from kubealign_services.training.contract import Head
from kubealign_services.training.torch_backend.model.loading import load_model
from kubealign_services.training.torch_backend.model.lora import add_adapters
from kubealign_services.training.torch_backend.optimizer import set_learning_rate
from kubealign_services.training.torch_backend.optimizers.factory import hidden_matrices, make_optimizer
from kubealign_services.training.torch_backend.optimizers.shard_optimizer import ShardOptimizer

_BLOCKS = {
    f"backbone.model.layers.{layer}.{name}.weight"
    for layer in (0, 1)
    for name in (
        *(f"self_attn.{letter}_proj" for letter in "qkvo"),
        *(f"mlp.{name}_proj" for name in ("gate", "up", "down")),
    )
}


def state_names(model: torch.nn.Module, optimizer: ShardOptimizer) -> dict[str, str]:
    """Return the last name of each trained parameter's state: `step` of AdamW, `momentum_buffer` of Muon."""
    return {
        name: sorted(optimizer.state_shapes(parameter))[-1]
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }


def test_muon_trains_the_matrices_of_the_blocks(tied_llama: Path) -> None:
    model = load_model(tied_llama, Head.SCORE)
    optimizer = make_optimizer(model, Optimizer(muon=Muon(weight_decay=0.2), adam_w=AdamW(weight_decay=0.1)))
    names = state_names(model, optimizer)
    assert {name for name, state in names.items() if state == "momentum_buffer"} == _BLOCKS
    assert {state for name, state in names.items() if name not in _BLOCKS} == {"step"}
    decay = {id(p): group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert len(decay) == len(names)
    assert decay[id(model.get_parameter("backbone.model.layers.0.mlp.up_proj.weight"))] == 0.2
    assert decay[id(model.get_parameter("backbone.model.embed_tokens.weight"))] == 0.1
    assert decay[id(model.get_parameter("backbone.model.norm.weight"))] == 0.0


def test_embeddings_and_small_weights_keep_fp32_moments(wide_llama: Path) -> None:
    model = load_model(wide_llama, Head.LANGUAGE_MODEL)
    optimizer = make_optimizer(model, Optimizer(adam_w=AdamW(states=MomentStates.BLOCKWISE_8BIT)))
    names = state_names(model, optimizer)
    in_8_bits = {name for name in names if "state1" in shapes_of(model, optimizer, name)}
    large = {name for name in _BLOCKS if "k_proj" not in name and "v_proj" not in name}
    assert in_8_bits == large | {"backbone.lm_head.weight"}


def shapes_of(model: torch.nn.Module, optimizer: ShardOptimizer, name: str) -> dict[str, torch.Size]:
    return optimizer.state_shapes(model.get_parameter(name))


def test_a_head_that_is_tied_to_the_embedding_keeps_fp32_moments(wide_llama: Path) -> None:
    model = load_model(wide_llama, Head.LANGUAGE_MODEL)
    model.backbone.lm_head.weight = model.backbone.model.embed_tokens.weight
    optimizer = make_optimizer(model, Optimizer(adam_w=AdamW(states=MomentStates.BLOCKWISE_8BIT)))
    assert "exp_avg" in shapes_of(model, optimizer, "backbone.model.embed_tokens.weight")


def test_8_bits_and_muon_share_the_weights(wide_llama: Path) -> None:
    model = load_model(wide_llama, Head.LANGUAGE_MODEL)
    spec = Optimizer(
        muon=Muon(learning_rate=0.02),
        adam_w=AdamW(states=MomentStates.BLOCKWISE_8BIT, learning_rate=1e-3),
        device=OptimizerDevice.HOST,
    )
    optimizer = make_optimizer(model, spec)
    assert "state1" in shapes_of(model, optimizer, "backbone.lm_head.weight")
    assert "momentum_buffer" in shapes_of(model, optimizer, "backbone.model.layers.1.mlp.down_proj.weight")
    assert set_learning_rate(optimizer, spec, 0, 1) == 1e-3
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    assert rates[id(model.get_parameter("backbone.model.layers.1.mlp.down_proj.weight"))] == 0.02
    assert rates[id(model.get_parameter("backbone.lm_head.weight"))] == 1e-3


def test_experts_are_matrices_and_a_gate_of_one_row_is_not(
    tmp_path: Path, save_model: Callable[..., Path]
) -> None:
    config = Qwen3MoeConfig(
        vocab_size=41, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16,
    )  # fmt: skip
    model = load_model(save_model(config, tmp_path), Head.LANGUAGE_MODEL)
    shapes = {tuple(parameter.shape) for parameter in hidden_matrices(model)}
    assert {(4, 32, 32), (4, 32, 16), (4, 32)} <= shapes  # gates with projections, projections, router
    model.backbone.model.layers[0].mlp.shared_gate = torch.nn.Linear(32, 1, bias=False)
    assert (1, 32) not in {tuple(parameter.shape) for parameter in hidden_matrices(model)}


@pytest.mark.parametrize("rank", [4, 64])
def test_factors_of_an_adapter_have_8_bits_if_they_are_large(rank: int, wide_llama: Path) -> None:
    model = load_model(wide_llama, Head.LANGUAGE_MODEL)
    targets = LoraTargetLayers(kind=LoraLayerKind.ATTENTION)
    add_adapters(model, Lora(rank=rank, targets=targets), seed=0)
    optimizer = make_optimizer(model, Optimizer(adam_w=AdamW(states=MomentStates.BLOCKWISE_8BIT)))
    states = [optimizer.state_shapes(each) for each in model.parameters() if each.requires_grad]
    assert any("state1" in shapes for shapes in states) is (rank == 64)
