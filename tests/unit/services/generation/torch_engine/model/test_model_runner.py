"""A forward pass over pages, against plain transformers over complete sequences."""

import copy
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from kubealign_services.generation.torch_engine.attention.attention_plan import EngineAttentionPlan
from kubealign_services.generation.torch_engine.attention.gathered_plan import GatheredPlan
from kubealign_services.generation.torch_engine.kv_cache.paged_kv_cache import LayerKVShape, PagedKVCache
from kubealign_services.generation.torch_engine.model.causal_model import CausalModel
from kubealign_services.generation.torch_engine.model.model_runner import LocalModelRunner
from kubealign_services.generation.torch_engine.ragged_batch import PAGE_TOKENS, RaggedBatch

MODELS = ["llama-gqa", "llama-tied", "qwen2", "mistral-window", "qwen2-some-windows", "gpt-neox", "gpt2"]
PAGES = 6


class GatheredPasses(LocalModelRunner):
    """Runner with torch's own operations, as on an accelerator."""

    def _plan(self, batch: RaggedBatch) -> EngineAttentionPlan:
        return GatheredPlan(batch, self._cache, self.model.dtype, self.device)


def passes_of(
    reference: Any, dtype: torch.dtype = torch.float32, kind: type[LocalModelRunner] = LocalModelRunner
) -> LocalModelRunner:
    passes = kind(CausalModel(copy.deepcopy(reference.config), dtype, torch.device("cpu")))
    passes.load_weights(reference.named_parameters())
    return passes


class Sequences:
    """Sequences in progress, each with its own pages in any order."""

    def __init__(self, tokens: Sequence[Sequence[int]], tables: np.ndarray[Any, Any]) -> None:
        self.tokens, self.tables = tokens, tables
        self.done = [0] * len(tokens)

    def batch(self, news: dict[int, int]) -> tuple[RaggedBatch, list[tuple[int, int]]]:
        """Return a batch with `news[i]` tokens of sequence i, and the (sequence, position) of each of its
        tokens.
        """
        order = sorted(news, key=lambda i: news[i] != 1)
        decoding = sum(news[i] == 1 for i in order)
        places = [(i, p) for i in order for p in range(self.done[i], self.done[i] + news[i])]
        for i in order:
            self.done[i] += news[i]
        batch = RaggedBatch(
            tokens=np.array([self.tokens[i][p] for i, p in places], np.int64),
            positions=np.array([p for _, p in places], np.int64),
            lengths=np.array([news[i] for i in order], np.int64),
            decoding_count=decoding,
            page_tables=self.tables[order],
            logit_indices=np.arange(len(places)),
        )
        return batch, places


def shuffled_tables(draw: random.Random, count: int) -> np.ndarray[Any, Any]:
    pages = list(range(count * PAGES))
    draw.shuffle(pages)
    return np.array(pages, np.int32).reshape(count, PAGES)


@torch.inference_mode()
def plain(reference: Any, tokens: Sequence[int]) -> torch.Tensor:
    logits: torch.Tensor = reference(torch.tensor([tokens]), use_cache=False).logits[0]
    return logits


@pytest.mark.parametrize("kind", [LocalModelRunner, GatheredPasses])
@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_random_chunks_of_random_sequences(name: str, kind: type[LocalModelRunner], zoo: Any) -> None:
    """Five sequences, each pass with some of them and any number of tokens of each: single ones, short and
    long chunks, some longer than a window.
    """
    draw = random.Random(f"{name} {kind}")
    reference = zoo.reference(name)
    passes = passes_of(reference, kind=kind)
    tokens = [[draw.randrange(276) for _ in range(draw.randrange(1, 96))] for _ in range(5)]
    sequences = Sequences(tokens, shuffled_tables(draw, 5))
    passes.reserve(5 * PAGES)
    expected = [plain(reference, each) for each in tokens]
    while left := {i: len(each) - sequences.done[i] for i, each in enumerate(tokens)}:
        news = {
            i: min(n, draw.choice((1, 1, 7, 25, 80))) for i, n in left.items() if n and draw.random() < 0.8
        }
        if not any(left.values()):
            break
        if not news:
            continue
        batch, places = sequences.batch(news)
        logits = passes.forward(batch)
        expected_logits = torch.stack([expected[i][p] for i, p in places])
        torch.testing.assert_close(logits, expected_logits, atol=1e-4, rtol=1e-5)


@torch.inference_mode()
def test_only_requested_logits_are_returned(zoo: Any) -> None:
    reference = zoo.reference("llama-gqa")
    passes = passes_of(reference)
    passes.reserve(PAGES)
    tokens = list(range(5, 45))
    sequences = Sequences([tokens], shuffled_tables(random.Random(1), 1))
    for offsets in ([], [3, 9], [9], []):
        batch, _ = sequences.batch({0: 10})
        chosen = RaggedBatch(**{**vars(batch), "logit_indices": np.array(offsets, np.int64)})
        start = sequences.done[0] - 10
        expected = plain(reference, tokens)[[start + w for w in offsets]]
        torch.testing.assert_close(passes.forward(chosen), expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("kind", [LocalModelRunner, GatheredPasses])
@pytest.mark.parametrize("name", ["llama-gqa", "mistral-window", "gpt2"])
@torch.inference_mode()
def test_shared_pages_written_in_the_same_pass(name: str, kind: type[LocalModelRunner], zoo: Any) -> None:
    """The second sequence shares the first one's prefix and pages: in the pass that fills them, and later
    when both decode.
    """
    reference = zoo.reference(name)
    passes = passes_of(reference, kind=kind)
    passes.reserve(12)
    shared = [7 * i % 270 for i in range(2 * PAGE_TOKENS)]
    tokens = [[*shared, 4, 5, 6], [*shared, 9, 8, 7, 6]]
    tables = np.array([[3, 8, 1, 0, 0, 0], [3, 8, 11, 0, 0, 0]], np.int32)
    sequences = Sequences(tokens, tables)
    sequences.done[1] = len(shared)
    first, places = sequences.batch({0: 34, 1: 2})
    second, more = sequences.batch({0: 1, 1: 1})
    expected = [plain(reference, each) for each in tokens]
    for batch, where in ((first, places), (second, more)):
        expected_logits = torch.stack([expected[i][p] for i, p in where])
        torch.testing.assert_close(passes.forward(batch), expected_logits, atol=1e-4, rtol=1e-5)


@torch.inference_mode()
def test_copied_pages_are_independent(zoo: Any) -> None:
    """Two sequences continue from the same partial page, each in a copy."""
    reference = zoo.reference("llama-gqa")
    passes = passes_of(reference)
    passes.reserve(3)
    prompt = list(range(30, 42))
    tokens = [[*prompt, 1, 2], [*prompt, 200, 201]]
    sequences = Sequences(tokens, np.array([[2], [0]], np.int32))
    batch, _ = sequences.batch({0: 12})
    passes.forward(batch)
    passes.copy_pages([2], [0])
    sequences.done[1] = 12
    expected = [plain(reference, each) for each in tokens]
    for _ in range(2):
        batch, places = sequences.batch({0: 1, 1: 1})
        expected_logits = torch.stack([expected[i][p] for i, p in places])
        torch.testing.assert_close(passes.forward(batch), expected_logits, atol=1e-4, rtol=1e-5)


@torch.inference_mode()
def test_cached_contents_survive_growth(zoo: Any) -> None:
    reference = zoo.reference("qwen2")
    passes = passes_of(reference)
    tokens = list(range(60))
    sequences = Sequences([tokens], np.arange(PAGES, dtype=np.int32)[None])
    expected = plain(reference, tokens)
    for pages in (1, 2, 4):
        passes.reserve(pages)
        news = min(60, pages * PAGE_TOKENS) - sequences.done[0]
        batch, places = sequences.batch({0: news})
        expected_logits = torch.stack([expected[p] for _, p in places])
        torch.testing.assert_close(passes.forward(batch), expected_logits, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("name", MODELS)
@torch.inference_mode()
def test_complete_sequence_needs_no_page(name: str, zoo: Any) -> None:
    reference = zoo.reference(name)
    passes = passes_of(reference)
    for length in (1, 40):
        tokens = list(range(100, 100 + length))
        torch.testing.assert_close(
            passes.forward_sequence(tokens), plain(reference, tokens), atol=1e-4, rtol=1e-5
        )
    assert passes.pages == 0


@pytest.mark.parametrize("kind", [LocalModelRunner, GatheredPasses])
@pytest.mark.parametrize("name", ["llama-gqa", "mistral-window", "gpt-neox"])
@torch.inference_mode()
def test_bfloat16(name: str, kind: type[LocalModelRunner], zoo: Any) -> None:
    """At most 1.5 times as far from float32 as transformers' own bfloat16, with the same weights."""
    reference = copy.deepcopy(zoo.reference(name)).bfloat16()
    passes = passes_of(reference, torch.bfloat16, kind)
    passes.reserve(3 * PAGES)
    draw = random.Random(5)
    tokens = [[draw.randrange(276) for _ in range(90)] for _ in range(3)]
    rough = torch.stack([plain(reference, each) for each in tokens]).float()
    exact = torch.stack([plain(reference.float(), each) for each in tokens])
    sequences = Sequences(tokens, shuffled_tables(draw, 3))
    actual = torch.zeros_like(exact)
    for news in (70, 19, 1):
        batch, places = sequences.batch(dict.fromkeys(range(3), news))
        for logits, (i, p) in zip(passes.forward(batch), places, strict=True):
            actual[i, p] = logits
    assert (actual - exact).square().mean() < 1.5**2 * (rough - exact).square().mean()


def test_page_bytes() -> None:
    """Llama with two key heads of 8 numbers, two layers, float32: 16 tokens x 2 x 8 x (key and value) x 2
    layers x 4 bytes."""
    shapes = {0: LayerKVShape(2, 8, 8), 1: LayerKVShape(2, 8, 8)}
    cache = PagedKVCache(shapes, torch.float32, torch.device("cpu"))
    assert cache.page_bytes == 16 * 2 * 8 * 2 * 2 * 4 == 4096
    cache.reserve(3)
    assert (cache.pages, cache.page_bytes) == (3, 4096)
    cache.clear()
    assert cache.pages == 0
