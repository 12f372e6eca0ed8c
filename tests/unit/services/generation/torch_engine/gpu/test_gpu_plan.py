"""The attention plan of a GPU, with its kernel run by Triton's interpreter, against gathering."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kubealign_services.generation.torch_engine.attention.gathered_plan import GatheredPlan
from kubealign_services.generation.torch_engine.attention.gpu_plan import DeviceBatch, GpuPlan
from kubealign_services.generation.torch_engine.kv_cache.paged_kv_cache import LayerKVShape, PagedKVCache
from kubealign_services.generation.torch_engine.ragged_batch import PAGE_TOKENS, RaggedBatch

pytest.importorskip("triton")
CPU = torch.device("cpu")


def batch_of(sequences: list[tuple[int, int]], seed: int) -> RaggedBatch:
    """Return a batch of (cached tokens, new tokens) with pages in random order."""
    rng = np.random.default_rng(seed)
    contexts = [cached + new for cached, new in sequences]
    counts = [-(-context // PAGE_TOKENS) for context in contexts]
    order = rng.permutation(sum(counts)).astype(np.int32)
    tables = np.zeros((len(sequences), max(counts)), np.int32)
    for row, count in enumerate(counts):
        tables[row, :count], order = order[:count], order[count:]
    news = np.array([new for _, new in sequences], np.int64)
    return RaggedBatch(
        tokens=np.zeros(news.sum(), np.int64),
        positions=np.concatenate([np.arange(cached, cached + new) for cached, new in sequences]),
        lengths=news,
        decoding_count=0,
        page_tables=tables,
        logit_indices=np.arange(news.sum()),
    )


def cache_of(batch: RaggedBatch, shape: LayerKVShape, dtype: torch.dtype) -> PagedKVCache:
    """Return a cache with random keys and values of the batch's contexts; every other slot is NaN."""
    generator = torch.Generator().manual_seed(1)
    cache = PagedKVCache({0: shape}, dtype, CPU)
    cache.reserve(int(batch.page_tables.max()) + 1)
    for block in cache.layer(0):
        block.fill_(torch.nan)
        for row, context in enumerate(batch.context_lengths):
            position = np.arange(context)
            pages = torch.from_numpy(batch.page_tables[row, position // PAGE_TOKENS]).long()
            states = torch.randn(len(position), *block.shape[2:], generator=generator)
            block[pages, torch.from_numpy(position % PAGE_TOKENS)] = states.to(dtype)
    return cache


def outputs(
    batch: RaggedBatch,
    shape: LayerKVShape,
    heads: int,
    dtype: torch.dtype,
    scaling: float | None = None,
    window: int | None = None,
    softcap: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the kernel's attention and the gathered one: [tokens, heads, value width]."""
    generator = torch.Generator().manual_seed(2)
    queries, keys, values = (
        torch.randn(count, len(batch.tokens), width, generator=generator).to(dtype)
        for count, width in (
            (heads, shape.key_width),
            (shape.heads, shape.key_width),
            (shape.heads, shape.value_width),
        )
    )
    first, second = cache_of(batch, shape, dtype), cache_of(batch, shape, dtype)
    compiled = GpuPlan(first, DeviceBatch.copy_of(batch, CPU)).attend(
        0, queries, keys, values, scaling, window, softcap
    )
    gathered = GatheredPlan(batch, second, dtype, CPU).attend(
        0, queries, keys, values, scaling, window, softcap
    )
    return compiled, gathered


@settings(max_examples=8, deadline=None)
@given(
    sequences=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 20)), min_size=1, max_size=3),
    key_heads=st.integers(1, 2),
    sharing=st.sampled_from([1, 3, 4, 17]),
    window=st.sampled_from([None, 1, 5, 30]),
    softcap=st.sampled_from([None, 0.7]),
    seed=st.integers(0, 99),
)
def test_kernel_equals_gathering_and_reads_no_unused_slot(
    sequences: list[tuple[int, int]],
    key_heads: int,
    sharing: int,
    window: int | None,
    softcap: float | None,
    seed: int,
) -> None:
    batch = batch_of(sequences, seed)
    shape = LayerKVShape(key_heads, 16, 16)
    compiled, gathered = outputs(
        batch, shape, key_heads * sharing, torch.float32, window=window, softcap=softcap
    )
    torch.testing.assert_close(compiled, gathered, atol=2e-6, rtol=1e-5)


def test_decoding_alone_and_other_widths() -> None:
    batch = batch_of([(70, 1), (0, 1), (15, 1), (16, 1)], 0)
    compiled, gathered = outputs(batch, LayerKVShape(2, 24, 40), 6, torch.float32, scaling=0.5)
    torch.testing.assert_close(compiled, gathered, atol=2e-6, rtol=1e-5)


def test_half_precision() -> None:
    batch = batch_of([(100, 1), (3, 12)], 0)
    compiled, gathered = outputs(batch, LayerKVShape(2, 64, 64), 4, torch.float16)
    torch.testing.assert_close(compiled, gathered, atol=2e-3, rtol=2e-3)
