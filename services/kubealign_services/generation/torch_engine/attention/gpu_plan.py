"""Attention plan for a GPU: a kernel over the pages, which can be recorded in a CUDA graph."""

import logging
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

log = logging.getLogger(__name__)

# Relative and absolute: bfloat16 has 8 significant bits, float16 11; float32 is not rounded to TF32.
_TOLERANCE = {torch.bfloat16: 0.03, torch.float16: 0.01, torch.float32: 1e-4}


@dataclass(frozen=True)
class DeviceBatch:
    """A batch on the device.

    lengths: the new tokens of each sequence, int64 [n], in the host's memory. slots: int64 [T], the slot of
    each new token, page * PAGE_TOKENS + offset. starts: int32 [n + 1], the start of each sequence's new
    tokens, and the end. page_tables: int32 [n, most]. context_lengths: int32 [n].
    """

    lengths: NDArray[np.int64]
    slots: Tensor
    starts: Tensor
    page_tables: Tensor
    context_lengths: Tensor

    @classmethod
    def copy_of(cls, batch: RaggedBatch, device: torch.device) -> "DeviceBatch":
        """Copy a batch to the device."""

        def moved(array: NDArray[Any], dtype: torch.dtype) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(array)).to(device, dtype)

        return cls(
            lengths=batch.lengths,
            slots=moved(slot_mapping(batch), torch.int64),
            starts=moved(np.concatenate(([0], np.cumsum(batch.lengths))), torch.int32),
            page_tables=moved(batch.page_tables, torch.int32),
            context_lengths=moved(batch.context_lengths, torch.int32),
        )


class GpuPlan:
    """An EngineAttentionPlan over a DeviceBatch.

    A second pass over the same plan allocates nothing on the host, so that it can be recorded.
    """

    def __init__(self, cache: PagedKVCache, batch: DeviceBatch) -> None:
        self._cache = cache
        self._batch = batch
        self._blocks: dict[int, tuple[Tensor, Tensor]] = {}

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
        # Imported lazily: builds of torch without a GPU have no Triton compiler.
        from kubealign_services.generation.torch_engine.gpu import attention_kernel as kernel

        batch, cached = self._batch, self._cache.layer(layer)
        for states, block in zip((keys, values), cached, strict=True):
            block.flatten(0, 1).index_copy_(0, batch.slots, states.transpose(0, 1))
        sharing = queries.shape[0] // keys.shape[0]
        rows = kernel.DECODE_ROWS if batch.lengths.max() == 1 else kernel.PREFILL_ROWS
        if sharing not in self._blocks:
            sequences, starts = kernel.query_blocks(batch.lengths, sharing, rows)
            device = batch.slots.device
            self._blocks[sharing] = (
                torch.from_numpy(sequences).to(device),
                torch.from_numpy(starts).to(device),
            )
        return kernel.paged_attention(
            queries,
            cached,
            self._blocks[sharing],
            rows,
            batch.starts,
            batch.page_tables,
            batch.context_lengths,
            scaling,
            window,
            softcap,
        )


@torch.inference_mode()
def gpu_attention_works(uses: Iterable[LayerAttention], dtype: torch.dtype, device: torch.device) -> bool:
    """Return True where the kernel agrees with gathering on this device, for the widths, windows, caps and
    heads of these layers.

    Otherwise, for example without a C compiler, which Triton needs, a warning says why.
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
            compiled = _attend_random(
                use, batch, dtype, device, lambda c: GpuPlan(c, DeviceBatch.copy_of(batch, device))
            )
        except Exception:  # compilers and drivers raise errors of many types
            log.warning("the attention kernel does not run here: generation will be slow", exc_info=True)
            return False
        difference = float((compiled - gathered).abs().max())
        if not torch.allclose(compiled, gathered, atol=_TOLERANCE[dtype], rtol=_TOLERANCE[dtype]):
            log.warning(
                "the attention kernel differs from torch's attention by %.3g: generation will be slow",
                difference,
            )
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
    return plan(cache).attend(0, queries, keys, values, None, use.window, use.softcap).float()
