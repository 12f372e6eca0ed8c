"""Quantisation of frozen weights, compared with an implementation weight by weight."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig, Qwen2MoeConfig

from kubealign.spec.sections.training import BaseQuantization, Nf4Quantization
from kubealign_services.training.adapters import quantization as quantization_module
from kubealign_services.training.adapters.quantization import (
    BLOCK_SIZE,
    QuantizationNotInstalled,
    check_quantization_installed,
    quantize_nf4,
    round_weight,
    select_quantized_layers,
)
from support.slow_nf4 import BLOCK, nf4_levels, round_to_nf4

#: The paper's appendix E.
PAPER_LEVELS = [
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
    -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
    0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023,
    1.0,
]  # fmt: skip
SIZES: dict[str, Any] = {
    "vocab_size": 41, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2,
}  # fmt: skip


def nf4(double: bool) -> BaseQuantization:
    return BaseQuantization(nf4=Nf4Quantization(double_quantization=double))


def weight(rows: int, columns: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(rows)
    return (torch.randn(rows, columns, generator=generator) * 0.1).to(dtype)


def test_the_levels_are_the_papers() -> None:
    assert nf4_levels() == pytest.approx(PAPER_LEVELS, abs=1e-6)
    assert BLOCK == BLOCK_SIZE


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rounded_weights_are_the_nearest_levels(dtype: torch.dtype) -> None:
    original = weight(6, 128, dtype)
    original[1, :64] = 0
    rounded = round_weight(original, nf4(double=False), dtype)
    assert rounded.dtype is dtype and rounded.shape == original.shape
    tolerance = {"atol": 1e-6, "rtol": 1e-6} if dtype is torch.float32 else {"atol": 0, "rtol": 0}
    torch.testing.assert_close(rounded, round_to_nf4(original).to(dtype), **tolerance)
    assert bool((rounded[1, :64] == 0).all())


def test_double_quantisation_rounds_the_scales_in_blocks_of_256() -> None:
    original = weight(300, 64) * torch.linspace(0.5, 2, 300)[:, None]
    _, state = quantize_nf4(original, nf4(double=True))
    assert state.absmax.dtype is torch.uint8 and state.state2.absmax.shape == (2,)
    rounded = round_weight(original, nf4(double=True), torch.float32)
    expected = round_to_nf4(original, double=True, code=state.state2.code)
    torch.testing.assert_close(rounded, expected, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(rounded, round_to_nf4(original), atol=1e-4, rtol=1e-4)


def test_a_checkpoint_in_fp32_is_rounded_in_the_precision_of_the_computation() -> None:
    original = weight(8, 64)
    rounded = round_weight(original, nf4(double=True), torch.bfloat16)
    assert torch.equal(rounded, round_weight(original.bfloat16(), nf4(double=True), torch.bfloat16))
    assert not torch.equal(
        rounded, round_weight(original, nf4(double=True), torch.float32).to(torch.bfloat16)
    )


def test_linear_layers_of_the_blocks_are_selected() -> None:
    def ends(config: Any) -> list[str]:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        return [name.removeprefix("model.layers.") for name in select_quantized_layers(model)]

    attention = [f"self_attn.{part}_proj" for part in "qkvo"]
    # down_proj has 96 inputs, which are no whole blocks.
    mlp = ["mlp.gate_proj", "mlp.up_proj"]
    assert ends(LlamaConfig(**SIZES)) == [f"{layer}.{name}" for layer in (0, 1) for name in attention + mlp]
    sparse = Qwen2MoeConfig(
        **SIZES, num_experts=4, moe_intermediate_size=64, shared_expert_intermediate_size=64
    )
    shared = [f"mlp.shared_expert.{part}_proj" for part in ("gate", "up", "down")]
    assert ends(sparse) == [f"{layer}.{name}" for layer in (0, 1) for name in attention + shared]
    with pytest.raises(ValueError, match=r"no block of GPT2LMHeadModel has a linear layer .* multiple of 64"):
        ends(GPT2Config(vocab_size=41, n_embd=64, n_layer=1, n_head=4))
    with pytest.raises(ValueError, match="no block of LlamaForCausalLM"):
        ends(LlamaConfig(**SIZES | {"hidden_size": 32}))


def test_a_missing_library_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    check_quantization_installed(nf4(double=True))
    monkeypatch.setattr(quantization_module, "find_spec", lambda name: None)
    check_quantization_installed(None)
    with pytest.raises(QuantizationNotInstalled) as raised:
        check_quantization_installed(nf4(double=True))
    assert str(raised.value) == (
        "lora.quantization.nf4: bitsandbytes is not installed where the model is loaded: "
        "pip install 'kubealign[bitsandbytes]'"
    )


def test_the_import_reports_no_missing_kernel() -> None:
    """Import bitsandbytes, which warns on processors with bf16 instructions, as peft does."""
    program = (
        "import logging; import kubealign_services.training.adapters; logging.basicConfig(); import peft"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "kernels-community" not in done.stdout + done.stderr
