"""4-bit NormalFloat (NF4) of the frozen weights below an adapter, by bitsandbytes.

Dettmers et al. 2023, QLoRA, section 3: 16 levels with equal areas under a normal distribution, scaled by the
largest magnitude of each block of 64 weights. With double quantisation the scales, less their mean, are 8-bit
numbers in blocks of 256.

Trainer and rollout workers quantise the same checkpoint on a CPU with these functions, so that both have the
same levels bit for bit. bitsandbytes is imported on demand: the import takes a second.
"""

from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from kubealign.spec.sections.training import BaseQuantization
from kubealign_services.training.adapters.targets import linear_layers

#: Weights that share a scale. A row of a quantised matrix is whole blocks, whatever the sharding.
BLOCK_SIZE = 64


class QuantizationNotInstalled(ValueError):
    """The library that quantises weights is missing. The text says what to install."""


def check_quantization_installed(quantization: BaseQuantization | None) -> None:
    """Raise QuantizationNotInstalled when a base is to be quantised and bitsandbytes cannot be imported."""
    if quantization is not None and find_spec("bitsandbytes") is None:
        raise QuantizationNotInstalled(
            f"lora.quantization.{quantization.member}: bitsandbytes is not installed where the model is "
            "loaded: pip install 'kubealign[bitsandbytes]'"
        )


def select_quantized_layers(backbone: PreTrainedModel) -> list[str]:
    """Return the names of the layers to quantise, in the model's order: the linear layers of the blocks.

    Embeddings, heads, norms, routers, experts stacked in one tensor and layers whose number of inputs is no
    multiple of the block size keep their precision. Raises ValueError when no layer is left.
    """
    modules = dict(backbone.named_modules())
    names = [
        name
        for name, kind in linear_layers(backbone)
        if kind is not None and not _is_router(name) and _has_whole_blocks(modules[name])
    ]
    if not names:
        raise ValueError(
            f"lora.quantization: no block of {type(backbone).__name__} has a linear layer whose number of "
            f"inputs is a multiple of {BLOCK_SIZE}: remove it"
        )
    return names


def quantize_nf4(weight: Tensor, quantization: BaseQuantization) -> tuple[Tensor, Any]:
    """Quantise a matrix.

    Returns (packed levels, two a byte, as [outputs * inputs / 2 / itemsize, 1] of the weight's dtype, the
    `QuantState` of bitsandbytes).

    Args:
        weight: [outputs, inputs] in fp32, bf16 or fp16, on a CPU.
    """
    assert quantization.nf4 is not None
    packed, state = bitsandbytes().functional.quantize_4bit(
        weight.detach().contiguous(),
        blocksize=BLOCK_SIZE,
        compress_statistics=quantization.nf4.double_quantization,
        quant_type="nf4",
        quant_storage=weight.dtype,
    )
    return packed, state


def round_weight(weight: Tensor, quantization: BaseQuantization, dtype: torch.dtype) -> Tensor:
    """Return the nearest quantised weight in `dtype`: the one that a trainer in this precision computes with.

    Args:
        weight: [outputs, inputs], as the checkpoint holds it.
    """
    rounded: Tensor = bitsandbytes().functional.dequantize_4bit(
        *quantize_nf4(weight.detach().to("cpu", dtype), quantization)
    )
    return rounded


def bitsandbytes() -> Any:
    """Import bitsandbytes."""
    import bitsandbytes

    return bitsandbytes


def _is_router(name: str) -> bool:
    last = name.rpartition(".")[2]
    return last in {"gate", "router"} or last.endswith("_gate")


def _has_whole_blocks(module: nn.Module) -> bool:
    return isinstance(module, nn.Linear) and module.in_features % BLOCK_SIZE == 0
