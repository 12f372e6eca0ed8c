"""Encodes a RaggedBatch as one row of numbers, and decodes it. Pure."""

import numpy as np
from numpy.typing import NDArray

from kubealign_services.generation.torch_engine.ragged_batch import PAGE_TOKENS, RaggedBatch


def encode_batch(batch: RaggedBatch) -> NDArray[np.int64]:
    """Encode a batch.

    Layout: number of sequences, number of decoding ones, width of the page tables, number of tokens; then
    the lengths, the defined part of the page tables, the tokens, their positions, and the logit indices.
    """
    most = -(-int(batch.context_lengths.max()) // PAGE_TOKENS)
    tables = batch.page_tables[:, :most]
    sizes = np.array([len(tables), batch.decoding_count, most, len(batch.tokens)], np.int64)
    parts = (sizes, batch.lengths, tables.ravel(), batch.tokens, batch.positions, batch.logit_indices)
    numbers: NDArray[np.int64] = np.concatenate(parts, dtype=np.int64)
    return numbers


def decode_batch(numbers: NDArray[np.int64]) -> RaggedBatch:
    """Decode the output of `encode_batch`."""
    count, decoding, most, total = numbers[:4].tolist()
    lengths, tables, tokens, positions, logit_indices = np.split(
        numbers[4:], np.cumsum([count, count * most, total, total])
    )
    return RaggedBatch(
        tokens, positions, lengths, decoding, tables.reshape(count, most).astype(np.int32), logit_indices
    )
