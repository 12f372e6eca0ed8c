"""Attention plan for a GPU by torch's FlashAttention over pages, without gathering."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kubealign_services.generation.torch_engine.attention.attention_plan import (
    EngineAttentionPlan,
    LayerAttention,
)
from kubealign_services.generation.torch_engine.attention.gathered_plan import GatheredPlan, slot_mapping
from kubealign_services.generation.torch_engine.kv_cache.paged_kv_cache import PagedKVCache
from kubealign_services.generation.torch_engine.ragged_batch import PAGE_TOKENS, RaggedBatch

# bfloat16 has 8 significant bits.
_TOLERANCE = 0.03


@dataclass(frozen=True)
class FlashBatch:
    """Device tensors of a batch.

    slots: int64 [T], the slot of each new token, page * PAGE_TOKENS + offset. starts: int32 [n + 1], the
    start of each sequence's new tokens, and the end. page_tables: int32 [n, most]. context_lengths: int32
    [n].
    """

    slots: Tensor
    starts: Tensor
    page_tables: Tensor
    context_lengths: Tensor


class FlashPlan:
    """An EngineAttentionPlan over device tensors, which can be recorded in a CUDA graph.

    longest_new, longest: largest number of new tokens, and of all tokens, of a sequence.
    """

    def __init__(self, cache: PagedKVCache, batch: FlashBatch, longest_new: int, longest: int) -> None:
        self._cache = cache
        self._batch = batch
        self._longest_new, self._longest = longest_new, longest

    @classmethod
    def from_batch(cls, batch: RaggedBatch, cache: PagedKVCache, device: torch.device) -> "FlashPlan":
        def moved(array: NDArray[Any], dtype: torch.dtype) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(array)).to(device, dtype)

        tensors = FlashBatch(
            slots=moved(slot_mapping(batch), torch.int64),
            starts=moved(np.concatenate(([0], np.cumsum(batch.lengths))), torch.int32),
            page_tables=moved(batch.page_tables, torch.int32),
            context_lengths=moved(batch.context_lengths, torch.int32),
        )
        return cls(cache, tensors, int(batch.lengths.max()), int(batch.context_lengths.max()))

    def attend(
        self,
        layer: int,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        scaling: float | None,
        window: int | None,
    ) -> Tensor:
        from torch.nn.attention.varlen import varlen_attn

        cached = self._cache.layer(layer)
        for states, block in zip((keys, values), cached, strict=True):
            block.flatten(0, 1).index_copy_(0, self._batch.slots, states.transpose(0, 1))
        out = varlen_attn(
            queries.transpose(0, 1).contiguous(),
            *cached,
            self._batch.starts,
            None,
            self._longest_new,
            self._longest,
            scale=scaling,
            # Number of earlier and later tokens that a token sees.
            window_size=(-1 if window is None else window - 1, 0),
            enable_gqa=queries.shape[0] != keys.shape[0],
            seqused_k=self._batch.context_lengths,
            block_table=self._batch.page_tables,
        )
        assert isinstance(out, Tensor)
        return out


@torch.inference_mode()
def flash_attention_works(uses: Iterable[LayerAttention], dtype: torch.dtype, device: torch.device) -> bool:
    """Return True where FlashAttention agrees with gathering, for the widths, windows and heads of these
    layers, on this device: the supported pages depend on its version.
    """
    batch = RaggedBatch(
        tokens=np.zeros(8, np.int64),
        positions=np.array([PAGE_TOKENS + 3, 5, *range(14, 20)], np.int64),
        lengths=np.array([1, 1, 6], np.int64),
        decoding_count=2,
        page_tables=np.array([[4, 1], [2, 0], [0, 3]], np.int32),
        logit_indices=np.arange(8),
    )
    for use in set(uses):
        gathered = _attend_random(use, batch, dtype, device, lambda c: GatheredPlan(batch, c, dtype, device))
        try:
            flash = _attend_random(
                use, batch, dtype, device, lambda c: FlashPlan.from_batch(batch, c, device)
            )
        except (ImportError, RuntimeError, TypeError, ValueError):  # it raises for unsupported arguments
            return False
        if not torch.allclose(flash, gathered, atol=_TOLERANCE, rtol=_TOLERANCE):
            return False
    return True


def _attend_random(
    use: LayerAttention,
    batch: RaggedBatch,
    dtype: torch.dtype,
    device: torch.device,
    plan: Callable[[PagedKVCache], EngineAttentionPlan],
) -> Tensor:
    """Return the plan's output for fixed pseudo-random input."""
    generator = torch.Generator(device).manual_seed(1)
    kv_shape, tokens = use.kv_shape, len(batch.tokens)
    cache = PagedKVCache({0: kv_shape}, dtype, device)
    cache.reserve(int(batch.page_tables.max()) + 1)
    for block in cache.layer(0):
        block.normal_(generator=generator)
    queries, keys, values = (
        torch.randn(heads, tokens, width, generator=generator, dtype=dtype, device=device)
        for heads, width in (
            (use.heads, kv_shape.key_width),
            (kv_shape.heads, kv_shape.key_width),
            (kv_shape.heads, kv_shape.value_width),
        )
    )
    return plan(cache).attend(0, queries, keys, values, None, use.window).float()
