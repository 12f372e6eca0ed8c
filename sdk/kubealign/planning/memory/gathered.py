"""Tensors that FSDP2 gathers from all ranks for a pass."""

from kubealign.planning.memory.quantized_base import quantized_base
from kubealign.planning.model import parameter_counts
from kubealign.planning.model.shape import ModelShape
from kubealign.spec.sections.training import Lora


def gathered_bytes(shape: ModelShape, size: int, has_vocabulary: bool, lora: Lora | None = None) -> int:
    """Return bytes of the gathered weights: the embeddings and the head, which stay gathered during a pass,
    two blocks and the buffer of a third.

    Args:
        size: Bytes of a value.
        lora: Adapter whose base may be quantised.
    """
    block = max(_block_bytes(shape, size, lora, index) for index in range(shape.layers))
    root = parameter_counts.embedding(shape) + (parameter_counts.head(shape) if has_vocabulary else 0)
    return size * root + 3 * block


def _block_bytes(shape: ModelShape, size: int, lora: Lora | None, index: int) -> int:
    quantized = quantized_base(shape, lora, index)
    return size * (parameter_counts.layer(shape, index) - quantized.weights) + quantized.packed
