"""Frozen linear layers in 4-bit NormalFloat (see `adapters.quantization`), and the quantisation of a model.

bitsandbytes' own `Linear4bit` is not used: on some processors its forward pass repacks the weights for
inference, and its parameter loses the scales when FSDP2 shards it. Its kernels are.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from kubealign.spec.sections.training import BaseQuantization
from kubealign_services.training.adapters.quantization import (
    BLOCK_SIZE,
    bitsandbytes,
    quantize_nf4,
    select_quantized_layers,
)

#: Name of the parameter of packed levels.
_PACKED = "packed"
#: Scales in a block, with double quantisation: the only size that the kernels take.
_SCALES_PER_BLOCK = 256


class Nf4Linear(nn.Linear):
    """A frozen linear layer whose weight is stored in NF4 and dequantised for each product.

    Attributes:
        packed: Two levels a byte, [outputs * inputs / 2 / itemsize, 1] of the computation's dtype, which
            FSDP2 shards and gathers without conversion.
        absmax: Scale of each block of 64 weights, fp32 [blocks]; with double quantisation uint8 codes.
        nested_absmax, nested_code, offset: With double quantisation the scales' fp32 scales
            [blocks / 256], the 256 values of the codes, and the scales' mean.
        bias: As in the original layer, or None.
    """

    packed: nn.Parameter
    absmax: Tensor
    nested_absmax: Tensor | None
    nested_code: Tensor | None
    offset: Tensor | None

    def __init__(self, linear: nn.Linear, quantization: BaseQuantization) -> None:
        """Quantise a linear layer, which stays as it is."""
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        packed, state = quantize_nf4(linear.weight, quantization)
        self.packed = nn.Parameter(packed, requires_grad=False)
        self.bias = linear.bias
        nested = state.state2
        scales = {
            "absmax": state.absmax,
            "nested_absmax": None if nested is None else nested.absmax,
            "nested_code": None if nested is None else nested.code,
            "offset": state.offset,
        }
        for name, tensor in scales.items():
            # Not persistent: a checkpoint of the model holds the dequantised weight.
            self.register_buffer(name, tensor, persistent=False)

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """The dequantised weight, [outputs, inputs]. Collective when sharded."""
        packed = self.packed.detach()
        if isinstance(packed, DTensor):
            packed = packed.full_tensor()
        weight: Tensor = bitsandbytes().functional.dequantize_4bit(packed, self._state(packed.dtype))
        return weight

    def forward(self, input: Tensor) -> Tensor:
        output: Tensor = bitsandbytes().matmul_4bit(
            input, self.packed, self._state(self.packed.dtype), bias=self.bias
        )
        return output

    def _state(self, dtype: torch.dtype) -> Any:
        """Return the scales as the kernels take them, for a weight of this dtype."""
        state = bitsandbytes().functional.QuantState
        nested = None
        if self.nested_absmax is not None:
            nested = state(
                absmax=self.nested_absmax,
                code=self.nested_code,
                blocksize=_SCALES_PER_BLOCK,
                dtype=torch.float32,
            )
        return state(
            absmax=self.absmax,
            shape=torch.Size((self.out_features, self.in_features)),
            blocksize=BLOCK_SIZE,
            quant_type="nf4",
            dtype=dtype,
            offset=self.offset,
            state2=nested,
        )


def quantize_layers(backbone: PreTrainedModel, quantization: BaseQuantization) -> None:
    """Quantise the frozen linear layers of a model on the CPU in place, and free each one's full weight
    before the next.

    The other weights are copied out of a checkpoint that is mapped into memory: the whole file stays resident
    while one tensor is a view of it. Raises what `select_quantized_layers` raises.
    """
    for name in select_quantized_layers(backbone):
        parent, _, attribute = name.rpartition(".")
        owner = backbone.get_submodule(parent)
        setattr(owner, attribute, Nf4Linear(getattr(owner, attribute), quantization))
    for parameter in backbone.parameters():
        if not parameter.untyped_storage().resizable():
            parameter.data = parameter.data.clone()


def dequantized(model: nn.Module, named: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Yield the named parameters of a model, with the dequantised weight in place of packed levels.

    Collective when sharded. One dequantised weight exists at a time, unless the caller keeps it.
    """
    layers = {f"{name}.{_PACKED}": layer for name, layer in _quantized_layers(model)}
    for name, tensor in named:
        layer = layers.get(name)
        yield (name, tensor) if layer is None else (f"{name.removesuffix(_PACKED)}weight", layer.weight)


def weight_shapes(model: nn.Module) -> Iterator[tuple[torch.Size, bool]]:
    """Yield (shape, is trained) of each weight, of packed levels the shape of the matrix."""
    layers = {f"{name}.{_PACKED}": layer for name, layer in _quantized_layers(model)}
    for name, parameter in model.named_parameters():
        layer = layers.get(name)
        shape = parameter.shape if layer is None else torch.Size((layer.out_features, layer.in_features))
        yield shape, parameter.requires_grad


def _quantized_layers(model: nn.Module) -> Iterator[tuple[str, Nf4Linear]]:
    return ((name, layer) for name, layer in model.named_modules() if isinstance(layer, Nf4Linear))
