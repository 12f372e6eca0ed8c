"""Fused layers: outputs and gradients match torch's own."""

# mypy: disable-error-code="no-untyped-call"
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import silu
from transformers import AutoModelForCausalLM, GemmaConfig, GPT2Config

from kubealign_services.batch.packed import Batch
from kubealign_services.training.contract import Head
from kubealign_services.training.torch_backend.model import fused_layers
from kubealign_services.training.torch_backend.model.fused_layers import (
    patch_fused_layers,
    rms_norm,
    silu_gate,
    silu_gate_down,
)
from kubealign_services.training.torch_backend.model.loading import load_model
from kubealign_services.training.torch_backend.model.packed_model import PackedTokens

CPU = torch.device("cpu")


def drawn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def plain_norm(x: Tensor, weight: Tensor) -> Tensor:
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))


CASES: dict[str, tuple[Callable[..., Tensor], Callable[..., Tensor], list[Tensor]]] = {
    "norm": (
        lambda x, weight: rms_norm(x, weight, 1e-5),
        plain_norm,
        [drawn(2, 7, 5, seed=1), drawn(5, seed=2)],
    ),
    "gated": (silu_gate, lambda g, u: silu(g) * u, [drawn(2, 7, 6, seed=1), drawn(2, 7, 6, seed=2)]),
    "gated_down": (
        silu_gate_down,
        lambda g, u, w: (silu(g) * u) @ w.T,
        [drawn(2, 7, 6, seed=1), drawn(2, 7, 6, seed=2), drawn(4, 6, seed=3)],
    ),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("rows", [3, 1 << 18])
def test_values_and_gradients_match_plain_torch(
    name: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fused_layers, "_CACHED", rows * 6)  # in blocks of a few rows, and all at once
    lean, plain, inputs = CASES[name]
    leaves = [each.clone().requires_grad_() for each in inputs]
    assert torch.autograd.gradcheck(lean, leaves)
    torch.testing.assert_close(lean(*leaves), plain(*leaves), atol=1e-12, rtol=1e-12)
    upward = drawn(*lean(*leaves).shape, seed=9)
    stored = upward.clone()
    actual, expected = (torch.autograd.grad(each(*leaves), leaves, upward) for each in (lean, plain))
    torch.testing.assert_close(actual, expected, atol=1e-12, rtol=1e-12)
    assert torch.equal(upward, stored)


def test_layers_of_another_form_are_not_patched(
    tmp_path: Path, save_model: Callable[..., Path], llama: Path
) -> None:
    sizes = {"vocab_size": 41, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    config = GemmaConfig(
        **sizes, num_attention_heads=4, num_key_value_heads=2, head_dim=8, hidden_activation="gelu"
    )
    gemma = AutoModelForCausalLM.from_config(config).eval()
    gpt2 = AutoModelForCausalLM.from_config(GPT2Config(vocab_size=41, n_embd=32, n_layer=1, n_head=4)).eval()
    for model in (gemma, gpt2):
        patch_fused_layers(model)
        assert not any(type(module).__name__.startswith("Lean") for module in model.modules())
    # A norm with the attributes of the known form that computes something else.
    known = AutoModelForCausalLM.from_pretrained(llama).eval()
    kind = type(known.model.norm)
    other = type("OtherRMSNorm", (kind,), {"forward": lambda self, x: kind.forward(self, x) + self.weight})
    known.model.norm.__class__ = other
    patch_fused_layers(known)
    assert type(known.model.norm) is other
    assert type(known.model.layers[0].mlp).__name__ == "LeanLlamaMLP"


def test_a_step_stores_few_bytes_for_the_backward_pass(llama: Path, make_batch: Callable[..., Batch]) -> None:
    model = load_model(llama, Head.LANGUAGE_MODEL)
    weights = {each.untyped_storage().data_ptr() for each in model.parameters()}
    packed = PackedTokens.from_batch(make_batch(32, 32), CPU)
    stored: dict[int, Tensor] = {}

    def note(tensor: Tensor) -> Tensor:
        stored[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model(packed, frozenset({"logprobs"}))
    numbers = sum(
        each.untyped_storage().nbytes() // 4
        for index, each in stored.items()
        if index not in weights and each.dtype is torch.float32
    )
    # A layer of hidden 32, MLP 64, keys and values 16 wide (repeated for the heads: 32): its input and the
    # second norm's (2 x 32), both normed (2 x 32), query, key, value (3 x 32), what attention gives (32),
    # gate and up (2 x 64): 384 for a token. The rest: norms' scales, the log-sum-exp of 4 heads, the final
    # norm's input, the head's hidden states, cosines and sines. Plain layers would keep 640 and more.
    tokens, layers = 64, 2
    assert numbers / tokens <= layers * (384 + 2 + 4) + 3 * 32 + 2 * 8


def test_modules_without_weights_are_not_patched() -> None:
    model = nn.Sequential(nn.Identity(), nn.LayerNorm(4))
    patch_fused_layers(model)
    assert [type(module) for module in model] == [nn.Identity, nn.LayerNorm]
