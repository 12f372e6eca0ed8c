"""Attention plan for a CPU: single tokens by a compiled kernel over pages, long prompt chunks by torch."""

import numpy as np
import torch
from torch import Tensor

from kubealign_services.generation.torch_engine.attention.gathered_plan import GatheredRows, slot_mapping
from kubealign_services.generation.torch_engine.cpu.attention_kernel import attention_kernel
from kubealign_services.generation.torch_engine.cpu.bfloat16_conversion import element_array
from kubealign_services.generation.torch_engine.cpu.kernel_threads import KERNEL_THREADS, split_work
from kubealign_services.generation.torch_engine.cpu.layer_kernels import write_rows
from kubealign_services.generation.torch_engine.kv_cache.paged_kv_cache import PagedKVCache
from kubealign_services.generation.torch_engine.ragged_batch import RaggedBatch

# A prompt chunk that ends within this many tokens is computed token by token: the kernel has less overhead
# than torch's operations.
SHORT_CONTEXT = 64
_NO_WINDOW = 1 << 62


class PagedPlan:
    """An EngineAttentionPlan for a RaggedBatch."""

    def __init__(self, batch: RaggedBatch, cache: PagedKVCache, dtype: torch.dtype) -> None:
        self._cache = cache
        self._slots = slot_mapping(batch)
        self._page_tables = np.ascontiguousarray(batch.page_tables)
        single = batch.context_lengths <= SHORT_CONTEXT
        single[: batch.decoding_count] = True
        self._owners = np.repeat(np.arange(len(single)), np.where(single, batch.lengths, 0))
        self._tokens = np.flatnonzero(np.repeat(single, batch.lengths))
        self._contexts = batch.positions[self._tokens] + 1
        rest = np.flatnonzero(~single)
        self._rest = GatheredRows(batch, rest, dtype, torch.device("cpu")) if len(rest) else None

    def attend(
        self,
        layer: int,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        scaling: float | None,
        window: int | None,
        softcap: float | None = None,
    ) -> Tensor:
        heads, tokens, width = queries.shape
        cached_keys, cached_values = self._cache.layer(layer)
        for states, cached in ((keys, cached_keys), (values, cached_values)):
            new = states.transpose(0, 1).contiguous().flatten(1)
            write_rows(element_array(new), self._slots, element_array(cached.flatten(0, 1).flatten(1)))
        out = values.new_empty(tokens, heads, values.shape[2])
        if len(self._tokens):
            arguments = (
                element_array(queries.transpose(0, 1).contiguous()),
                element_array(cached_keys),
                element_array(cached_values),
                self._page_tables,
                self._tokens,
                self._owners,
                self._contexts,
                window or _NO_WINDOW,
                np.float32(width**-0.5 if scaling is None else scaling),
                np.float32(softcap or 0),
                element_array(out),
            )
            parts = self._thread_parts(layer, keys.shape[0], window)
            kernel = attention_kernel(width, values.shape[2])
            KERNEL_THREADS.run(kernel, [(*arguments, *part) for part in parts])
        if self._rest is not None:
            self._rest.attend(self._cache.layer(layer), queries, keys, values, scaling, window, softcap, out)
        return out

    def _thread_parts(
        self, layer: int, key_heads: int, window: int | None
    ) -> list[tuple[int, int, int, int]]:
        """Return the work of each thread: (first row, last row, first key head, last key head)."""
        seen = self._contexts if window is None else np.minimum(self._contexts, window)
        return split_work(seen * self._cache.numbers_per_token(layer), key_heads)
