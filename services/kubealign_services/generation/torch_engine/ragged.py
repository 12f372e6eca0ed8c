"""What one forward pass of the engine works on: new tokens of several sequences, whose keys and values lie in
pages. Pure data."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

#: Tokens of a page.
PAGE_TOKENS = 16


@dataclass(frozen=True)
class RaggedBatch:
    """n sequences with new tokens, T in all, one sequence after another.

    tokens, positions: int64 [T]. lengths: int64 [n], the new tokens of each sequence, at least one; their
    positions ascend by one. The first `decoding` sequences have one token each: they are the running ones,
    and the rest are parts of prompts.
    tables: int32 [n, most]: the pages of each sequence. Its position p lies in page tables[i, p //
    PAGE_TOKENS], at place p % PAGE_TOKENS; what stands in a row beyond the page of the sequence's last
    position means nothing.
    wanted: int64 [w], ascending: the places among the T after which logits are wanted.

    In each layer all new keys and values are written before any are read, so a sequence may look at a page
    that another one of the same pass fills. No place of a page is written twice in one pass.

    Arrays may be views of what the engine changes after the pass.
    """

    tokens: NDArray[np.int64]
    positions: NDArray[np.int64]
    lengths: NDArray[np.int64]
    decoding: int
    tables: NDArray[np.int32]
    wanted: NDArray[np.int64]

    @property
    def contexts(self) -> NDArray[np.int64]:
        """int64 [n]: tokens of each sequence when its new ones are in the cache."""
        ends = np.cumsum(self.lengths) - 1
        contexts: NDArray[np.int64] = self.positions[ends] + 1
        return contexts
