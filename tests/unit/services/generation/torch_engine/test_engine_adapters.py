"""An adapter instead of all weights: merged into the base of the last refit."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from kubealign_services.training.adapters.lora import LowRankAdapter

TOKENS = [5, 6, 7, 8, 9]
SCALE = 2.0


def adapter(model: Any, ends: tuple[str, ...], seed: int, dora: bool = False) -> dict[str, LowRankAdapter]:
    """Return an adapter of rank 2 for the layers whose names have these endings."""
    generator = torch.Generator().manual_seed(seed)
    adapters = {}
    for name, module in model.named_modules():
        if name.endswith(ends):
            # GPT-2 stores its matrices transposed.
            outputs, inputs = module.weight.shape if hasattr(module, "in_features") else module.weight.T.shape
            down, up = (
                0.3 * torch.randn(shape, generator=generator) for shape in ((2, inputs), (outputs, 2))
            )
            magnitude = 1 + torch.rand(outputs, generator=generator) if dora else None
            adapters[name] = LowRankAdapter(down, up, magnitude)
    assert adapters
    return adapters


def named(layers: dict[str, LowRankAdapter]) -> Iterator[tuple[str, torch.Tensor]]:
    return (part for name, layer in layers.items() for part in layer.named_tensors(name))


def merged(model: Any, layers: dict[str, LowRankAdapter]) -> dict[str, torch.Tensor]:
    """Return all weights, merged in the test."""
    weights = {name: weight.detach().clone() for name, weight in model.named_parameters()}
    for name, layer in layers.items():
        transposed = not hasattr(model.get_submodule(name), "in_features")
        weights[f"{name}.weight"] = layer.merge_into(weights[f"{name}.weight"], SCALE, transposed)
    return weights


@pytest.mark.parametrize("dora", [False, True])
@pytest.mark.parametrize(
    ("name", "ends"), [("llama-tied", ("q_proj", "down_proj")), ("gpt2", ("c_attn", "c_proj"))]
)
def test_adapter_equals_merged_weights(name: str, ends: tuple[str, ...], dora: bool, zoo: Any) -> None:
    model, engine, other = zoo.reference(name), zoo.engine(name), zoo.engine(name)
    layers = adapter(model, ends, 1, dora)
    base = engine.sequence_logprobs(TOKENS)
    engine.adapt(named(layers), SCALE, version=2)
    other.refit(merged(model, layers).items(), version=2)
    assert engine.version == 2
    assert engine.sequence_logprobs(TOKENS) == other.sequence_logprobs(TOKENS)
    assert engine.sequence_logprobs(TOKENS) != pytest.approx(base, abs=0.05)


def test_a_hundred_versions_do_not_drift(zoo: Any) -> None:
    """Only the last adapter counts, bit for bit; only adapted matrices are stored twice."""
    model, engine = zoo.reference("llama-gqa"), zoo.engine("llama-gqa")
    for seed in range(100):
        engine.adapt(named(adapter(model, ("q_proj",), seed)), SCALE, version=seed)
    fresh = zoo.engine("llama-gqa")
    fresh.adapt(named(adapter(model, ("q_proj",), 99)), SCALE, version=99)
    assert engine.sequence_logprobs(TOKENS) == fresh.sequence_logprobs(TOKENS)
    stored_elements = sum(layer.base.numel() for layer in engine._runner._adapters._layers.values())
    assert stored_elements == sum(m.weight.numel() for n, m in model.named_modules() if n.endswith("q_proj"))
    none = {
        name: LowRankAdapter(each.down, 0 * each.up, None)
        for name, each in adapter(model, ("q_proj",), 1).items()
    }
    engine.adapt(named(none), SCALE, version=100)
    assert engine.sequence_logprobs(TOKENS) == zoo.engine("llama-gqa").sequence_logprobs(TOKENS)


def test_refit_replaces_the_base(zoo: Any) -> None:
    model, engine = zoo.reference("llama-gqa"), zoo.engine("llama-gqa")
    layers = adapter(model, ("q_proj",), 1)
    engine.adapt(named(layers), SCALE, version=2)
    larger = {name: 1.2 * weight.detach() for name, weight in model.named_parameters()}
    engine.refit(larger.items(), version=3)
    engine.adapt(named(layers), SCALE, version=4)
    fresh = zoo.engine("llama-gqa")
    fresh.refit(larger.items(), version=3)
    fresh.adapt(named(layers), SCALE, version=4)
    assert engine.sequence_logprobs(TOKENS) == fresh.sequence_logprobs(TOKENS)


def test_invalid_adapter_is_refused_until_the_next(zoo: Any) -> None:
    model, engine = zoo.reference("llama-gqa"), zoo.engine("llama-gqa")
    layers = adapter(model, ("q_proj",), 1)
    first = next(iter(layers))
    down, up = layers[first].down, layers[first].up
    bad: list[tuple[dict[str, LowRankAdapter], str]] = [
        ({"model.layers.9.q_proj": layers[first]}, r"no linear layer 'model\.layers\.9\.q_proj'"),
        ({"model.norm": layers[first]}, r"no linear layer 'model\.norm'"),
        (
            layers | {first: LowRankAdapter(torch.ones(2, 5), up, None)},
            r"\[2, 5\], the layer needs \[2, 32\]",
        ),
        (
            layers | {first: LowRankAdapter(down, torch.ones(3, 2), None)},
            r"\[3, 2\], the layer needs \[32, 2\]",
        ),
    ]
    for each, says in bad:
        with pytest.raises(ValueError, match=says):
            engine.adapt(named(each), SCALE, version=2)
        with pytest.raises(RuntimeError, match="refit it first"):
            engine.sequence_logprobs(TOKENS)
    engine.adapt(named(layers), SCALE, version=3)
    with pytest.raises(ValueError, match=r"1 layers did not come: model\.layers\.0"):
        engine.adapt(named({name: each for name, each in layers.items() if name != first}), SCALE, version=4)
    engine.adapt(named(layers), SCALE, version=5)
    fresh = zoo.engine("llama-gqa")
    fresh.adapt(named(layers), SCALE, version=5)
    assert engine.sequence_logprobs(TOKENS) == fresh.sequence_logprobs(TOKENS)


def test_adapter_before_its_base_is_refused(zoo: Any) -> None:
    from kubealign.spec.sections import engines as engine_spec
    from kubealign_services.generation.torch_engine import TorchRolloutEngine

    engine = TorchRolloutEngine.create(zoo.folder("llama-gqa"), engine_spec.TorchEngineSpec())
    layers = adapter(zoo.reference("llama-gqa"), ("q_proj",), 1)
    with pytest.raises(RuntimeError, match="before the weights that it is an adapter to"):
        engine.adapt(named(layers), SCALE, version=1)
    with pytest.raises(ValueError, match="did not come"):
        engine.refit([], version=1)
    with pytest.raises(RuntimeError, match="before the weights that it is an adapter to"):
        engine.adapt(named(layers), SCALE, version=1)
