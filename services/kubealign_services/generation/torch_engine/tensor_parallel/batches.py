"""A RaggedBatch as one row of numbers, and back. Pure."""

import numpy as np
from numpy.typing import NDArray

from kubealign_services.generation.torch_engine.ragged import PAGE_TOKENS, RaggedBatch


def numbers_of(batch: RaggedBatch) -> NDArray[np.int64]:
    """How many sequences, how many of them decode, how wide the tables are, how many tokens; then the
    lengths, the tables as far as they mean something, the tokens, their positions, and where logits are
    wanted."""
    most = -(-int(batch.contexts.max()) // PAGE_TOKENS)
    tables = batch.tables[:, :most]
    sizes = np.array([len(tables), batch.decoding, most, len(batch.tokens)], np.int64)
    parts = (sizes, batch.lengths, tables.ravel(), batch.tokens, batch.positions, batch.wanted)
    numbers: NDArray[np.int64] = np.concatenate(parts, dtype=np.int64)
    return numbers


def batch_of(numbers: NDArray[np.int64]) -> RaggedBatch:
    """Of `numbers_of`."""
    count, decoding, most, total = numbers[:4].tolist()
    lengths, tables, tokens, positions, wanted = np.split(
        numbers[4:], np.cumsum([count, count * most, total, total])
    )
    return RaggedBatch(
        tokens, positions, lengths, decoding, tables.reshape(count, most).astype(np.int32), wanted
    )
