"""CPU kernel for the attention of single tokens over pages of keys and values, without gathering them."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from kubealign_services.generation.torch_engine.cpu.bfloat16_conversion import exponential, narrow, widen
from kubealign_services.generation.torch_engine.ragged_batch import PAGE_TOKENS
from kubealign_services.runtime.numba_kernels import numba_lazy

Kernel = Callable[..., None]


@lru_cache
def attention_kernel(width: int, value_width: int) -> Kernel:
    """Return a compiled kernel for keys and values of these widths: loops of a known length become straight
    vector code, which takes two thirds of the time.

    The kernel takes queries [T, heads, width], keys and values [pages, PAGE_TOKENS, key heads, width], and
    `tokens` int64 [n], the indices among the T tokens to compute. Token i uses table number `owners[i]` of
    `tables` int32 [rows, most], and reads the last `window` of the first `contexts[i]` slots of that table
    (both int64). A score s becomes softcap * tanh(s / softcap), where softcap is above 0. The kernel computes
    rows `first` to `last` - 1 of the n, with key heads `low` to `high` - 1, into out [T, heads, value width].
    """

    def attend(
        queries: Any,
        keys: Any,
        values: Any,
        tables: Any,
        tokens: Any,
        owners: Any,
        contexts: Any,
        window: Any,
        scaling: Any,
        softcap: Any,
        out: Any,
        first: Any,
        last: Any,
        low: Any,
        high: Any,
    ) -> None:
        sharing = queries.shape[1] // keys.shape[2]
        heads = (high - low) * sharing
        longest = 0
        for row in range(first, last):
            longest = max(longest, min(contexts[row], window))
        scores = np.empty((heads, longest), np.float32)
        query = np.empty((heads, width), np.float32)
        sums = np.empty((heads, value_width), np.float32)
        most = np.empty(heads, np.float32)
        for row in range(first, last):
            token, table = tokens[row], tables[owners[row]]
            end = contexts[row]
            start = max(0, end - window)
            seen = end - start
            for h in range(heads):
                for d in range(width):
                    query[h, d] = widen(queries[token, low * sharing + h, d]) * scaling
                for d in range(value_width):
                    sums[h, d] = 0
                most[h] = -np.inf
            # Tokens of a page in order, all heads of each: memory is read sequentially.
            for p in range(start // PAGE_TOKENS, (end - 1) // PAGE_TOKENS + 1):
                page, base = table[p], p * PAGE_TOKENS
                for t in range(max(start - base, 0), min(PAGE_TOKENS, end - base)):
                    for k in range(low, high):
                        for g in range(sharing):
                            h = (k - low) * sharing + g
                            score = np.float32(0)
                            for d in range(width):
                                score += query[h, d] * widen(keys[page, t, k, d])
                            scores[h, base + t - start] = score
                            # NaN compares false, but makes the total of the weights NaN.
                            if score > most[h]:
                                most[h] = score
            for h in range(heads):
                if softcap > 0:
                    for j in range(seen):
                        scores[h, j] = softcap * np.float32(np.tanh(scores[h, j] / softcap))
                    # tanh ascends: the largest score stays the largest.
                    most[h] = softcap * np.float32(np.tanh(most[h] / softcap))
                total = np.float32(0)
                for j in range(seen):
                    weight = exponential(scores[h, j] - most[h])
                    scores[h, j] = weight
                    total += weight
                scale = np.float32(1) / total
                for j in range(seen):
                    scores[h, j] *= scale
            for p in range(start // PAGE_TOKENS, (end - 1) // PAGE_TOKENS + 1):
                page, base = table[p], p * PAGE_TOKENS
                for t in range(max(start - base, 0), min(PAGE_TOKENS, end - base)):
                    for k in range(low, high):
                        for g in range(sharing):
                            h = (k - low) * sharing + g
                            weight = scores[h, base + t - start]
                            for d in range(value_width):
                                sums[h, d] += weight * widen(values[page, t, k, d])
            for h in range(heads):
                for d in range(value_width):
                    out[token, low * sharing + h, d] = narrow(sums[h, d], out[token, low * sharing + h, d])

    return numba_lazy(attend)
