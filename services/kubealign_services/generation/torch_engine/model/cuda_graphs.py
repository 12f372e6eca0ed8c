"""Decoding passes recorded as CUDA graphs: a pass costs the host one launch instead of some hundreds."""

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kubealign_services.generation.torch_engine.attention.gathered_plan import slot_mapping
from kubealign_services.generation.torch_engine.attention.gpu_plan import DeviceBatch, GpuPlan
from kubealign_services.generation.torch_engine.kv_cache.paged_kv_cache import PagedKVCache
from kubealign_services.generation.torch_engine.model.causal_model import CausalModel
from kubealign_services.generation.torch_engine.ragged_batch import PAGE_TOKENS, RaggedBatch

log = logging.getLogger(__name__)

# Larger passes keep the device busy for longer than the host needs to launch them.
MAX_SEQUENCES = 256


@dataclass
class _Graph:
    """One recording with its input and output tensors.

    Their addresses are fixed; each pass fills the inputs and reads the logits. plan: owns tensors that the
    recording reads.
    """

    graph: Any
    plan: GpuPlan
    tokens: Tensor
    positions: Tensor
    slots: Tensor
    page_tables: Tensor
    context_lengths: Tensor
    logits: Tensor


class DecodingGraphs:
    """One CUDA graph per batch size, recorded at its first use.

    Smaller batches are padded with rows that repeat the first row and write the same values.
    """

    def __init__(self, model: CausalModel, cache: PagedKVCache) -> None:
        self._model, self._cache = model, cache
        self._graphs: dict[int, _Graph] = {}
        self._is_enabled = True

    def clear(self) -> None:
        """Drop all recordings, which contain addresses: the cache or the weights will be reallocated."""
        self._graphs.clear()

    def run(self, batch: RaggedBatch) -> Tensor | None:
        """Return logits float32 [n, vocabulary]; None for a batch that has more than decoding, for one that
        is too large, or where the model cannot be recorded.
        """
        rows = len(batch.lengths)
        plain = rows == batch.decoding_count == len(batch.logit_indices)
        if not (self._is_enabled and plain and rows <= MAX_SEQUENCES):
            return None
        size = _padded_size(rows)
        if size not in self._graphs:
            try:
                self._graphs[size] = self._record(size)
            except RuntimeError:
                log.warning("this model's decoding cannot be recorded as a CUDA graph", exc_info=True)
                self._is_enabled = False
                return None
        graph = self._graphs[size]
        filled = np.concatenate((np.arange(rows), np.zeros(size - rows, np.int64)))
        # The graph's page tables fit the longest sequence; entries beyond a row's pages are undefined.
        width = min(batch.page_tables.shape[1], graph.page_tables.shape[1])
        for target, array in (
            (graph.tokens, batch.tokens),
            (graph.positions, batch.positions),
            (graph.slots, slot_mapping(batch)),
            (graph.page_tables[:, :width], batch.page_tables[:, :width]),
            (graph.context_lengths, batch.context_lengths),
        ):
            target.copy_(torch.from_numpy(array[filled]))
        graph.graph.replay()
        return graph.logits[:rows].clone()

    def _record(self, size: int) -> _Graph:
        device = self._model.device
        tokens, positions, slots = (torch.zeros(size, dtype=torch.int64, device=device) for _ in range(3))
        pages = -(-self._model.context // PAGE_TOKENS)
        tables = torch.zeros(size, pages, dtype=torch.int32, device=device)
        contexts = torch.ones(size, dtype=torch.int32, device=device)
        starts = torch.arange(size + 1, dtype=torch.int32, device=device)
        batch = DeviceBatch(np.ones(size, np.int64), slots, starts, tables, contexts)
        plan = GpuPlan(self._cache, batch)
        # Recording writes to page 0: its contents are saved and restored.
        saved = [[block[:1].clone() for block in self._cache.layer(layer)] for layer in self._model.layers]
        stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for _ in range(2):
                self._model.forward(tokens, positions, plan, keep=None)
        torch.cuda.current_stream(device).wait_stream(stream)
        graph: Any = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = self._model.forward(tokens, positions, plan, keep=None)
        for layer, blocks in zip(self._model.layers, saved, strict=True):
            for block, first_page in zip(self._cache.layer(layer), blocks, strict=True):
                block[:1] = first_page
        return _Graph(graph, plan, tokens, positions, slots, tables, contexts, logits)


def _padded_size(rows: int) -> int:
    """Return the next power of two, or one and a half times a power of two: at most a third is padding."""
    power = 1 << (rows - 1).bit_length()
    return power * 3 // 4 if rows <= power * 3 // 4 and power >= 4 else power
