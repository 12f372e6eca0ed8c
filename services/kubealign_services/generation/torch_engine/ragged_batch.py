"""Input of one forward pass: new tokens of several sequences, whose keys and values are stored in pages.

Pure data.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: Tokens per page.
PAGE_TOKENS = 16


@dataclass(frozen=True)
class RaggedBatch:
    """n sequences with new tokens, T in all, one sequence after another.

    tokens, positions: int64 [T]. lengths: int64 [n], the new tokens of each sequence, at least one; their
    positions ascend by one. The first `decoding_count` sequences have one token each: they are running,
    and the others are chunks of prompts.
    page_tables: int32 [n, most]: the pages of each sequence. Its position p is stored in page
    page_tables[i, p // PAGE_TOKENS] at slot p % PAGE_TOKENS; entries beyond the page of the sequence's
    last position are undefined.
    logit_indices: int64 [w], ascending: the indices among the T tokens after which logits are computed.

    In each layer all new keys and values are written before any are read, so a sequence may read a page
    that another one of the same pass fills. No slot is written twice in one pass.

    Arrays may be views of arrays that the engine changes after the pass.
    """

    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    lengths: NDArray[np.int64]
    decoding_count: int
    page_tables: NDArray[np.int32]
    logit_indices: NDArray[np.int64]

    @property
    def context_lengths(self) -> NDArray[np.int64]:
        """Number of tokens of each sequence, including the new ones: int64 [n]."""
        ends = np.cumsum(self.lengths) - 1
        contexts: NDArray[np.int64] = self.positions[ends] + 1
        return contexts
