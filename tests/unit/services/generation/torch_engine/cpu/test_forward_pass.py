"""oneDNN linear layers and the fused decoder, against torch's and transformers' own."""

import copy
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import linear, silu
from transformers import AutoModelForCausalLM, Qwen3Config

from kubealign_services.generation.torch_engine.cpu.fused_decoder import supports_module
from kubealign_services.generation.torch_engine.cpu.layer_kernels import rms_norm
from kubealign_services.generation.torch_engine.cpu.onednn_linear import OneDnnLayers, is_supported
from kubealign_services.generation.torch_engine.model.causal_model import CausalModel
from kubealign_services.generation.torch_engine.model.model_runner import LocalModelRunner

CPU = torch.device("cpu")


def layers(*outputs: int, bias: bool = False, dtype: torch.dtype = torch.float32) -> list[torch.nn.Linear]:
    torch.manual_seed(3)
    return [torch.nn.Linear(24, each, bias=bias, dtype=dtype).requires_grad_(False) for each in outputs]


@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize("rows", [0, 1, 9])
@pytest.mark.parametrize("bias", [True, False])
def test_linear_layers_equal_torch(rows: int, bias: bool, own: bool) -> None:
    """Cover oneDNN where available, with packed and unpacked weights, and torch."""
    products = OneDnnLayers(torch.float32)
    if not own:
        products.is_supported = False
    (layer,) = layers(17, bias=bias)
    product, x, other = products.add(layer), torch.randn(rows, 24), torch.randn(rows, 17)
    expected = linear(x, layer.weight, layer.bias)
    for _ in range(2):
        torch.testing.assert_close(product(x), expected, atol=1e-5, rtol=1e-5)
        if rows:
            torch.testing.assert_close(product.fused_silu(x), silu(expected), atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(
                product.fused_multiply(x, other), expected * other, atol=1e-5, rtol=1e-5
            )
            torch.testing.assert_close(product.fused_add(x, other), expected + other, atol=1e-5, rtol=1e-5)
        products.invalidate()
        products._should_pack = False


@pytest.mark.parametrize("packs", [True, False])
def test_concatenated_layers(packs: bool) -> None:
    products = OneDnnLayers(torch.float32)
    products._should_pack = packs and products.is_supported
    several = [*layers(5, 3), *layers(4, bias=True)]
    x = torch.randn(6, 24)
    expected = torch.cat([layer(x) for layer in several], dim=1)
    torch.testing.assert_close(products.add(*several)(x), expected, atol=1e-5, rtol=1e-5)


def test_changed_weights_are_packed_again() -> None:
    """Weights change in place or get another tensor's memory."""
    products = OneDnnLayers(torch.float32)
    (layer,) = layers(7)
    product, x = products.add(layer), torch.randn(2, 24)
    product(x)
    layer.weight.mul_(2)
    products.invalidate()
    torch.testing.assert_close(product(x), linear(x, layer.weight), atol=1e-5, rtol=1e-5)
    layer.weight.data = torch.randn(7, 24)
    products.invalidate()
    torch.testing.assert_close(product(x), linear(x, layer.weight), atol=1e-5, rtol=1e-5)


def test_this_machines_bfloat16() -> None:
    """The products are correct with and without bfloat16 instructions."""
    products = OneDnnLayers(torch.bfloat16)
    (layer,) = layers(7, dtype=torch.bfloat16)
    x = torch.randn(3, 24).bfloat16()
    torch.testing.assert_close(products.add(layer)(x), linear(x, layer.weight), atol=2e-2, rtol=2e-2)
    assert is_supported(torch.bfloat16) in (True, False)


def test_a_norm_by_hand() -> None:
    """(3, 4): the mean square is 12.5; with weights 1 and 10."""
    states, out = np.array([[3, 4]], np.float32), np.zeros((1, 2), np.float32)
    rms_norm(states, np.array([1, 10], np.float32), np.float32(0), out)
    assert out[0].tolist() == pytest.approx([3 / 12.5**0.5, 40 / 12.5**0.5])


def test_supported_models(zoo: Any) -> None:
    quick = {"llama-gqa", "llama-tied", "qwen2", "mistral-window", "qwen2-some-windows"}
    for name in (*quick, "gpt-neox", "gpt2"):
        assert supports_module(zoo.reference(name)) == (name in quick)
    hooked = copy.deepcopy(zoo.reference("llama-gqa"))
    hooked.model.layers[1].mlp.down_proj.register_forward_hook(lambda module, inputs, output: output * 2)
    assert not supports_module(hooked)
    hooked = copy.deepcopy(zoo.reference("llama-gqa"))
    hooked.model.layers[1].extra = torch.nn.LayerNorm(4)
    assert not supports_module(hooked)


def quick_passes(reference: Any) -> LocalModelRunner:
    passes = LocalModelRunner(CausalModel(copy.deepcopy(reference.config), torch.float32, CPU))
    passes.load_weights(reference.named_parameters())
    return passes


def qwen3() -> Any:
    """Return a model with norms over each head, with weights that differ from their initial ones, which would
    hide the norms.
    """
    torch.manual_seed(4)
    sizes: dict[str, Any] = {"vocab_size": 99, "hidden_size": 32, "intermediate_size": 48, "head_dim": 8}
    config = Qwen3Config(
        **sizes, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, initializer_range=0.25
    )
    make: Callable[..., Any] = AutoModelForCausalLM.from_config
    model = make(config, attn_implementation="eager")
    for name, weight in model.named_parameters():
        if name.endswith("norm.weight"):
            torch.nn.init.uniform_(weight, 0.5, 1.5)
    return model.eval()


@torch.inference_mode()
def test_head_norms() -> None:
    reference = qwen3()
    passes = quick_passes(reference)
    tokens = [5, 4, 98, 3, 2, 50]
    expected = reference(torch.tensor([tokens])).logits[0]
    for _ in range(2):
        torch.testing.assert_close(passes.forward_sequence(tokens), expected, atol=1e-4, rtol=1e-5)
    assert passes.model._fast_forward is not None
    assert passes.model._fast_forward._is_verified


@torch.inference_mode()
def test_wrong_fused_decoder_falls_back_to_modules(zoo: Any, caplog: pytest.LogCaptureFixture) -> None:
    """A norm of the right name and class that computes something else."""
    passes = quick_passes(zoo.reference("llama-gqa"))
    norm = passes.model.module.model.norm
    plain = type(norm).forward
    norm.forward = lambda states: plain(norm, states) * 1.01
    quickened = passes.model._fast_forward
    assert quickened is not None
    with caplog.at_level(logging.WARNING):
        first = passes.forward_sequence([1, 2, 3])
    assert "falling back to the model's modules" in caplog.text
    assert torch.equal(passes.forward_sequence([1, 2, 3]), first)
    expected = zoo.reference("llama-gqa")(torch.tensor([[1, 2, 3]])).logits[0]
    torch.testing.assert_close(first, expected * 1.01, atol=1e-4, rtol=1e-5)


@torch.inference_mode()
def test_undecisive_weights_verify_nothing(zoo: Any) -> None:
    reference = zoo.reference("llama-gqa")
    passes = LocalModelRunner(CausalModel(copy.deepcopy(reference.config), torch.float32, CPU))
    quickened = passes.model._fast_forward
    assert quickened is not None
    passes.load_weights((name, weight * torch.nan) for name, weight in reference.named_parameters())
    assert bool(passes.forward_sequence([1, 2]).isnan().all())
    assert not quickened._is_verified
    passes.load_weights(reference.named_parameters())
    passes.forward_sequence([1, 2])
    assert quickened._is_verified
    # NaN that appears later is detected too.
    passes.load_weights((name, weight * torch.nan) for name, weight in reference.named_parameters())
    assert bool(passes.forward_sequence([1, 2]).isnan().all())
