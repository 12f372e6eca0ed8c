"""Adapters of every rank: the torch backend's layers, names and initial weights, merged and resumed in any
layout.
"""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from kubealign.spec.sections.training import Lora, LoraLayerKind, LoraTargetLayers
from kubealign_services.training.contract import Head
from kubealign_services.training.megatron_backend.model.architecture import read_architecture
from kubealign_services.training.megatron_backend.model.lora_layers import adapted_layers, init_lora_a
from kubealign_services.training.megatron_backend.weights.checkpoint import load_shards, save_shard
from kubealign_services.training.megatron_backend.weights.checkpoint_shards import ParameterState
from kubealign_services.training.megatron_backend.weights.conversion import (
    HeadSizes,
    WeightConversion,
    build_conversions,
)
from kubealign_services.training.megatron_backend.weights.rank_slices import (
    is_adapter,
    is_weight,
    local_slices,
    tensor_owners,
)
from kubealign_services.training.torch_backend.model.loading import load_model
from kubealign_services.training.torch_backend.model.lora import add_adapters, stream_adapter
from support.megatron_models import config_of, save_model, split

LORA = Lora(rank=3, alpha=6.0)
LAYOUTS = [{}, {"tensor": 2, "pipeline": 2, "data": 2}]


def adapted(config: object, lora: Lora = LORA, **ranks: int) -> list[WeightConversion]:
    spec, world_size = split(**ranks)
    return build_conversions(
        read_architecture(config), spec, world_size, HeadSizes(), adapted_layers(config, lora)
    )


def dealt(conversion: WeightConversion, wholes: dict[str, Tensor]) -> dict[str, Tensor]:
    """Build a rank's parameters from the checkpoint's tensors."""
    parameters = {name: torch.zeros(shape) for name, shape in conversion.shapes.items()}
    for name, parameter in parameters.items():
        for part in conversion.slices_of(name):
            ranges = zip(part.start, part.size, strict=True)
            parameter[part.local_index] = wholes[part.name][tuple(slice(a, a + n) for a, n in ranges)]
    return parameters


def drawn(conversions: list[WeightConversion]) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {
        name: torch.randn(next(iter(owners.values())).slices[0].tensor_shape, generator=generator)
        for name, owners in tensor_owners(conversions, lambda name: True).items()
    }


@pytest.mark.parametrize("family", ["llama", "qwen2_moe"])
def test_layers_and_initial_weights_match_the_torch_backend(family: str, tmp_path: Path) -> None:
    config = config_of(family)
    save_model(tmp_path, config)
    model = load_model(tmp_path, Head.LANGUAGE_MODEL)
    add_adapters(model, LORA, seed=11)
    theirs = dict(stream_adapter(model, torch.float32, rank=0))
    downs = init_lora_a(config, LORA, 11, Head.LANGUAGE_MODEL, torch.float32)
    expected = {
        name.removesuffix(".lora_A.weight"): tensor for name, tensor in theirs.items() if "lora_A" in name
    }
    assert downs.keys() == expected.keys()
    assert all(torch.equal(downs[name], tensor) for name, tensor in expected.items())
    tensors = tensor_owners(adapted(config, tensor=2, pipeline=2), is_adapter)
    shapes = {name: next(iter(owners.values())).slices[0].tensor_shape for name, owners in tensors.items()}
    assert shapes == {
        name: tuple(tensor.shape) for name, tensor in theirs.items() if "shared_expert_gate" not in name
    }


@pytest.mark.parametrize("ranks", LAYOUTS, ids=["1 rank", "8 ranks"])
def test_slices_are_merged_with_matching_rows_and_columns_of_the_adapter(ranks: dict[str, int]) -> None:
    conversions = adapted(config_of("qwen2"), **ranks)
    wholes = drawn(conversions)
    scale = LORA.alpha / LORA.rank
    merged = {name: torch.full_like(tensor, 9.0) for name, tensor in wholes.items() if ".lora_" not in name}
    for conversion in conversions:
        parameters = dealt(conversion, wholes)
        for piece in local_slices(conversion, parameters, keep=is_weight, scale=scale):
            ranges = zip(piece.start, piece.tensor.shape, strict=True)
            merged[piece.name][tuple(slice(start, start + size) for start, size in ranges)] = piece.tensor
    changed = 0
    for name, tensor in merged.items():
        layer = name.removesuffix(".weight")
        expected = wholes[name]
        if f"{layer}.lora_A.weight" in wholes:
            expected = expected + scale * wholes[f"{layer}.lora_B.weight"] @ wholes[f"{layer}.lora_A.weight"]
            changed += 1
        torch.testing.assert_close(tensor, expected, rtol=1e-6, atol=1e-5)
    assert changed == 4 * 7


def test_a_checkpoint_of_adapters_is_read_in_another_layout(tmp_path: Path) -> None:
    before, after = (adapted(config_of("llama"), **ranks) for ranks in LAYOUTS)
    wholes = drawn(before)
    for rank, conversion in enumerate(after):
        states = {
            name: ParameterState(tensor, tensor * 2, tensor * 3)
            for name, tensor in dealt(conversion, wholes).items()
            if is_adapter(name)
        }
        save_shard(tmp_path, after, rank, states.items(), 7, LORA)
    (one,) = before
    trained = [name for name in one.shapes if is_adapter(name)]
    actual, updates = load_shards(tmp_path, before, 0, trained, LORA)
    expected = dealt(one, wholes)
    assert updates == 7
    assert all(torch.equal(actual[name].master, expected[name]) for name in trained)
    assert all(torch.equal(actual[name].exp_avg_sq, expected[name] * 3) for name in trained)


def test_targets_by_name_and_unsupported_targets() -> None:
    config = config_of("qwen2_moe")
    chosen = adapted_layers(config, Lora(rank=2, targets=LoraTargetLayers(names=["q_proj", "down_proj"])))
    assert {name.rpartition(".")[2] for name in chosen.layers} == {"q_proj", "down_proj"}
    assert not any(".experts." in name for name in chosen.layers)
    attention = adapted_layers(config, Lora(rank=2, targets=LoraTargetLayers(kind=LoraLayerKind.ATTENTION)))
    assert len(attention.layers) == 4 * 4
    with pytest.raises(ValueError, match=r"shared_expert_gate cannot be adapted by the Megatron backend"):
        adapted_layers(config, Lora(targets=LoraTargetLayers(names=["shared_expert_gate"])))
    with pytest.raises(ValueError, match=r"lora\.dora: true; the Megatron backend does not support DoRA"):
        adapted_layers(config, Lora(dora=True))
