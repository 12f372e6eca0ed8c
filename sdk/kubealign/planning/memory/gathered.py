"""Tensors that FSDP2 gathers from all ranks for a pass."""

from kubealign.planning.model import parameter_counts
from kubealign.planning.model.shape import ModelShape


def gathered_bytes(shape: ModelShape, size: int, has_vocabulary: bool) -> int:
    """Return bytes of the gathered weights: the embeddings and the head, which stay gathered during a pass,
    two blocks and the buffer of a third.

    Args:
        size: Bytes of a value.
    """
    block = max(parameter_counts.layer(shape, index) for index in range(shape.layers))
    root = parameter_counts.embedding(shape) + (parameter_counts.head(shape) if has_vocabulary else 0)
    return size * root + 3 * size * block
