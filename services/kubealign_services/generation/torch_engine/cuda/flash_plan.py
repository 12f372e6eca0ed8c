"""The AttentionPlan of a GPU where torch has FlashAttention over pages: nothing is gathered."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from kubealign_services.generation.torch_engine.attention import AttentionPlan, LayerUse
from kubealign_services.generation.torch_engine.cache import PagedCache
from kubealign_services.generation.torch_engine.gathered_plan import GatheredPlan, written_places
from kubealign_services.generation.torch_engine.ragged import PAGE_TOKENS, RaggedBatch

# bfloat16 has 8 bits.
_ROUNDING = 0.03


class FlashPlan:
    """An AttentionPlan over tensors of the device, which a graph may be recorded with.

    places [T] int64: where each new token goes, page * PAGE_TOKENS + place. starts [n + 1] int32: where each
    sequence's new tokens begin, and the end. tables [n, most], contexts [n] int32. longest_new, longest: most
    new tokens, and most tokens, of a sequence.
    """

    def __init__(
        self,
        cache: PagedCache,
        places: Tensor,
        starts: Tensor,
        tables: Tensor,
        contexts: Tensor,
        longest_new: int,
        longest: int,
    ) -> None:
        self._cache = cache
        self._places, self._starts, self._tables, self._contexts = places, starts, tables, contexts
        self._longest_new, self._longest = longest_new, longest

    @classmethod
    def of(cls, batch: RaggedBatch, cache: PagedCache, device: torch.device) -> "FlashPlan":
        def moved(array: NDArray[Any], dtype: torch.dtype) -> Tensor:
            return torch.from_numpy(np.ascontiguousarray(array)).to(device, dtype)

        return cls(
            cache,
            moved(written_places(batch), torch.int64),
            moved(np.concatenate(([0], np.cumsum(batch.lengths))), torch.int32),
            moved(batch.tables, torch.int32),
            moved(batch.contexts, torch.int32),
            int(batch.lengths.max()),
            int(batch.contexts.max()),
        )

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
            block.flatten(0, 1).index_copy_(0, self._places, states.transpose(0, 1))
        out = varlen_attn(
            queries.transpose(0, 1).contiguous(),
            *cached,
            self._starts,
            None,
            self._longest_new,
            self._longest,
            scale=scaling,
            # How many tokens before itself a token sees; none after.
            window_size=(-1 if window is None else window - 1, 0),
            enable_gqa=queries.shape[0] != keys.shape[0],
            seqused_k=self._contexts,
            block_table=self._tables,
        )
        assert isinstance(out, Tensor)
        return out


@torch.inference_mode()
def flash_works(uses: Iterable[LayerUse], dtype: torch.dtype, device: torch.device) -> bool:
    """Whether it computes what gathering computes, for the widths, windows and heads of these layers, on this
    device: which pages FlashAttention takes depends on its version."""
    batch = RaggedBatch(
        tokens=np.zeros(8, np.int64),
        positions=np.array([PAGE_TOKENS + 3, 5, *range(14, 20)], np.int64),
        lengths=np.array([1, 1, 6], np.int64),
        decoding=2,
        tables=np.array([[4, 1], [2, 0], [0, 3]], np.int32),
        wanted=np.arange(8),
    )
    for use in set(uses):
        gathered = _attended(use, batch, dtype, device, lambda c: GatheredPlan(batch, c, dtype, device))
        try:
            found = _attended(use, batch, dtype, device, lambda c: FlashPlan.of(batch, c, device))
        except (ImportError, RuntimeError, TypeError, ValueError):  # it says what it does not take
            return False
        if not torch.allclose(found, gathered, atol=_ROUNDING, rtol=_ROUNDING):
            return False
    return True


def _attended(
    use: LayerUse,
    batch: RaggedBatch,
    dtype: torch.dtype,
    device: torch.device,
    plan: Callable[[PagedCache], AttentionPlan],
) -> Tensor:
    """What a plan makes of numbers that are always the same."""
    generator = torch.Generator(device).manual_seed(1)
    kept, tokens = use.kept, len(batch.tokens)
    cache = PagedCache({0: kept}, dtype, device)
    cache.reserve(int(batch.tables.max()) + 1)
    for block in cache.layer(0):
        block.normal_(generator=generator)
    queries, keys, values = (
        torch.randn(heads, tokens, width, generator=generator, dtype=dtype, device=device)
        for heads, width in (
            (use.heads, kept.key_width),
            (kept.heads, kept.key_width),
            (kept.heads, kept.value_width),
        )
    )
    return plan(cache).attend(0, queries, keys, values, None, use.window).float()
