"""Attention over pages against its definition, in float64."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kubealign_services.generation.torch_engine.attention.gathered_plan import GatheredPlan
from kubealign_services.generation.torch_engine.attention.paged_plan import PagedPlan
from kubealign_services.generation.torch_engine.cpu import kernel_threads
from kubealign_services.generation.torch_engine.cpu.kernel_threads import split_rows, split_work
from kubealign_services.generation.torch_engine.kv_cache.paged_kv_cache import LayerKVShape, PagedKVCache
from kubealign_services.generation.torch_engine.ragged_batch import PAGE_TOKENS, RaggedBatch

CPU = torch.device("cpu")
WIDTHS = [(8, 8), (12, 4)]


def defined(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scaling: float,
    window: int | None,
    softcap: float | None,
) -> torch.Tensor:
    """Compute one sequence's [heads, width] at its last position, over [context, key heads, width]."""
    q, k, v = q.double(), k.double(), v.double()
    if window is not None:
        k, v = k[-window:], v[-window:]
    sharing = len(q) // k.shape[1]
    rows = []
    for h in range(len(q)):
        scores = k[:, h // sharing] @ q[h] * scaling
        if softcap is not None:
            scores = softcap * torch.tanh(scores / softcap)
        weights = torch.softmax(scores, dim=0)
        rows.append(weights @ v[:, h // sharing])
    return torch.stack(rows)


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    lengths = draw(st.lists(st.integers(1, 40), min_size=1, max_size=4))
    decoding = draw(st.integers(0, 3))
    return {
        "earlier": [draw(st.integers(0, 130)) for _ in range(decoding + len(lengths))],
        "lengths": [1] * decoding + lengths,
        "decoding": decoding,
        "widths": draw(st.sampled_from(WIDTHS)),
        "key_heads": draw(st.integers(1, 3)),
        "sharing": draw(st.integers(1, 3)),
        "window": draw(st.sampled_from([None, 1, 5, 40, 1000])),
        "softcap": draw(st.sampled_from([None, 0.7])),
        "dtype": draw(st.sampled_from([torch.float32, torch.bfloat16])),
        "plan": draw(st.sampled_from([PagedPlan, GatheredPlan])),
        "threads": draw(st.sampled_from([1, 2, 3])),
        "seed": draw(st.integers(0, 1000)),
    }


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(case=cases())
def test_every_new_token_sees_its_context(case: dict[str, Any]) -> None:
    rng = np.random.default_rng(case["seed"])
    torch.manual_seed(case["seed"])
    lengths, earlier = np.array(case["lengths"]), np.array(case["earlier"])
    contexts = earlier + lengths
    most = int(-(-contexts.max() // PAGE_TOKENS))
    tables = rng.permutation(len(lengths) * most).astype(np.int32).reshape(len(lengths), most)
    width, value_width = case["widths"]
    heads, dtype = case["key_heads"] * case["sharing"], case["dtype"]
    cache = PagedKVCache({3: LayerKVShape(case["key_heads"], width, value_width)}, dtype, CPU)
    cache.reserve(tables.size)
    cached = cache.layer(3)
    # NaN marks slots that must not be read.
    for block in cached:
        block.fill_(torch.nan)
    states = [torch.randn(n, case["key_heads"], width + value_width).to(dtype) for n in contexts]
    for row, start in enumerate(case["earlier"]):
        for p in range(start):
            page, offset = tables[row, p // PAGE_TOKENS], p % PAGE_TOKENS
            cached[0][page, offset] = states[row][p, :, :width]
            cached[1][page, offset] = states[row][p, :, width:]
    total = int(lengths.sum())
    new = torch.cat([each[start:] for each, start in zip(states, earlier, strict=True)])
    queries = torch.randn(heads, total, width).to(dtype)
    positions = np.concatenate([np.arange(a, b) for a, b in zip(earlier, contexts, strict=True)])
    batch = RaggedBatch(
        np.zeros(total, np.int64), positions, lengths, case["decoding"], tables, np.arange(total)
    )
    plan = case["plan"](batch, cache, dtype, *([CPU] if case["plan"] is GatheredPlan else []))
    threads = torch.get_num_threads()
    torch.set_num_threads(case["threads"])
    try:
        with pytest.MonkeyPatch.context() as patch:
            # A low threshold, so that a few rows already use several threads.
            patch.setattr(kernel_threads, "NUMBERS_PER_THREAD", 64)
            keys, values = (x.transpose(0, 1) for x in (new[..., :width], new[..., width:]))
            output = plan.attend(3, queries, keys, values, 0.3, case["window"], case["softcap"])
    finally:
        torch.set_num_threads(threads)
    assert output.dtype == dtype
    owners = np.repeat(np.arange(len(lengths)), lengths)
    for token, (row, position) in enumerate(zip(owners.tolist(), positions.tolist(), strict=True)):
        k, v = torch.split(states[row][: position + 1], [width, value_width], dim=2)
        expected = defined(queries[:, token], k, v, 0.3, case["window"], case["softcap"])
        # Torch's bfloat16 rounds the weights too.
        tolerance = 2e-6 if dtype == torch.float32 else 3e-2
        torch.testing.assert_close(output[token].double(), expected, atol=tolerance, rtol=tolerance)


def test_nan_and_infinity_propagate() -> None:
    """NaN or infinity among the keys of a token makes the result of that token NaN and no other."""
    for wrong in (torch.nan, torch.inf):
        cache = PagedKVCache({0: LayerKVShape(1, 8, 8)}, torch.float32, CPU)
        cache.reserve(2)
        for block in cache.layer(0):
            block.fill_(1.0)
        cache.layer(0)[0][1, 3, 0, 2] = wrong
        batch = RaggedBatch(
            *(np.zeros(2, np.int64), np.array([9, 9]), np.ones(2, np.int64), 2),
            *(np.array([[0], [1]], np.int32), np.arange(2)),
        )
        new = torch.ones(1, 2, 8)
        out = PagedPlan(batch, cache, torch.float32).attend(0, new, new, new, None, None)
        torch.testing.assert_close(out[0], torch.ones(1, 8))
        assert bool(out[1].isnan().all())


@given(work=st.lists(st.integers(1, 10**7), min_size=1, max_size=40), key_heads=st.integers(1, 9))
def test_thread_parts_cover_all_work_once(work: list[int], key_heads: int) -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        parts = split_work(np.array(work), key_heads)
        rows = split_rows(len(work), sum(work))
    finally:
        torch.set_num_threads(threads)
    seen = np.zeros((len(work), key_heads), int)
    for first, last, low, high in parts:
        assert first < last
        assert low < high
        seen[first:last, low:high] += 1
    assert (seen == 1).all()
    assert len(parts) <= 4
    assert len(rows) <= 4
    assert [row for first, last in rows for row in range(first, last)] == list(range(len(work)))


def test_rows_are_split_by_cost() -> None:
    """One row of a million numbers and ten of a hundred thousand: the first gets its own thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert split_work(np.array([1_000_000] + [100_000] * 10), 8) == [(0, 1, 0, 8), (1, 11, 0, 8)]
        # Two rows for two threads: each thread takes half of the heads, so that both finish together.
        assert split_work(np.array([900_000, 100_000]), 8) == [(0, 2, 0, 4), (0, 2, 4, 8)]
        # Too little work for two threads.
        assert split_work(np.array([1000] * 100), 8) == [(0, 100, 0, 8)]
    finally:
        torch.set_num_threads(threads)
