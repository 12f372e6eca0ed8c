"""Memory of frozen linear layers in 4-bit NormalFloat, in the layout of bitsandbytes.

Two weights a byte, and a scale for each 64 weights of a row: 4 bytes, or with double quantisation 1 byte, 4
for each 256 scales, and for each matrix the 256 values of the codes and a mean (Dettmers et al. 2023, QLoRA,
section 3).
"""

from dataclasses import dataclass

from kubealign.planning.model import parameter_counts
from kubealign.planning.model.shape import ModelShape
from kubealign.spec.sections.training import Lora

#: Weights that share a scale; the same as in training/adapters/quantization.py.
BLOCK_SIZE = 64
_SCALES_PER_BLOCK = 256
_CODE_VALUES = 256


@dataclass(frozen=True)
class QuantizedBase:
    """The quantised matrices of some layers.

    Attributes:
        weights: Number of weights.
        packed: Bytes of the levels, which FSDP2 shards.
        scales: Bytes of the scales, which every rank holds.
        largest: Weights of the largest matrix.
    """

    weights: int = 0
    packed: int = 0
    scales: int = 0
    largest: int = 0


#: Model without quantised matrices.
NOT_QUANTIZED = QuantizedBase()


def quantized_base(shape: ModelShape, lora: Lora | None, layer: int | None = None) -> QuantizedBase:
    """Return the quantised matrices of the whole model, or of one layer; empty without quantization.

    Stacked experts and routers are not quantised, nor are matrices whose rows are not whole blocks.
    """
    if lora is None or lora.quantization is None:
        return NOT_QUANTIZED
    assert lora.quantization.nf4 is not None
    sizes = [
        inputs * outputs
        for index in (range(shape.layers) if layer is None else [layer])
        for name, inputs, outputs in parameter_counts.linear_layers(shape)
        if inputs % BLOCK_SIZE == 0 and (parameter_counts.is_attention(name) or not shape.is_sparse(index))
    ]
    double = lora.quantization.nf4.double_quantization
    return QuantizedBase(
        sum(sizes), sum(sizes) // 2, sum(_scale_bytes(size, double) for size in sizes), max(sizes, default=0)
    )


def _scale_bytes(weights: int, double: bool) -> int:
    blocks = weights // BLOCK_SIZE
    if not double:
        return 4 * blocks
    return blocks + 4 * -(-blocks // _SCALES_PER_BLOCK) + 4 * (_CODE_VALUES + 1)
