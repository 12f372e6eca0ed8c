"""Decoding passes recorded as CUDA graphs, so that a pass costs the host one launch and not some hundreds."""

import logging
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kubealign_services.generation.torch_engine.cache import PagedCache
from kubealign_services.generation.torch_engine.cuda.flash_plan import FlashPlan
from kubealign_services.generation.torch_engine.gathered_plan import written_places
from kubealign_services.generation.torch_engine.model import CausalModel
from kubealign_services.generation.torch_engine.ragged import PAGE_TOKENS, RaggedBatch

log = logging.getLogger(__name__)

# Larger passes keep the device busy for longer than the host needs to launch them.
MOST_SEQUENCES = 256


@dataclass
class _Graph:
    """One recording. Its inputs and its logits stay where they are; each pass fills and reads them."""

    graph: Any
    tokens: Tensor
    positions: Tensor
    places: Tensor
    tables: Tensor
    contexts: Tensor
    logits: Tensor


class DecodingGraphs:
    """A graph for each size of a batch, recorded when it is first met; smaller batches are filled up with
    rows that repeat the first, and write what it writes."""

    def __init__(self, model: CausalModel, cache: PagedCache) -> None:
        self._model, self._cache = model, cache
        self._graphs: dict[int, _Graph] = {}
        self._records = True

    def forget(self) -> None:
        """The cache or the weights are about to lie elsewhere: recordings hold addresses."""
        self._graphs.clear()

    def run(self, batch: RaggedBatch) -> Tensor | None:
        """Logits [n, vocabulary] float32; None for a batch that is more than decoding, or too large, or where
        the model cannot be recorded."""
        rows = len(batch.lengths)
        plain = rows == batch.decoding == len(batch.wanted)
        if not (self._records and plain and rows <= MOST_SEQUENCES):
            return None
        size = _size(rows)
        if size not in self._graphs:
            try:
                self._graphs[size] = self._recorded(size)
            except RuntimeError:
                log.warning("this model's decoding cannot be recorded as a CUDA graph", exc_info=True)
                self._records = False
                return None
        graph = self._graphs[size]
        filled = np.concatenate((np.arange(rows), np.zeros(size - rows, np.int64)))
        # The graph's tables are as wide as any sequence's; what lies beyond a row's pages means nothing.
        width = min(batch.tables.shape[1], graph.tables.shape[1])
        for target, array in (
            (graph.tokens, batch.tokens),
            (graph.positions, batch.positions),
            (graph.places, written_places(batch)),
            (graph.tables[:, :width], batch.tables[:, :width]),
            (graph.contexts, batch.contexts),
        ):
            target.copy_(torch.from_numpy(array[filled]))
        graph.graph.replay()
        return graph.logits[:rows].clone()

    def _recorded(self, size: int) -> _Graph:
        device = self._model.device
        tokens, positions, places = (torch.zeros(size, dtype=torch.int64, device=device) for _ in range(3))
        pages = -(-self._model.context // PAGE_TOKENS)
        tables = torch.zeros(size, pages, dtype=torch.int32, device=device)
        contexts = torch.ones(size, dtype=torch.int32, device=device)
        starts = torch.arange(size + 1, dtype=torch.int32, device=device)
        plan = FlashPlan(self._cache, places, starts, tables, contexts, 1, self._model.context)
        # Recording computes with page 0 and would write to it: what it holds is put back.
        kept = [[block[:1].clone() for block in self._cache.layer(layer)] for layer in self._model.layers]
        stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for _ in range(2):
                self._model.forward(tokens, positions, plan, keep=None)
        torch.cuda.current_stream(device).wait_stream(stream)
        graph: Any = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            logits = self._model.forward(tokens, positions, plan, keep=None)
        for layer, blocks in zip(self._model.layers, kept, strict=True):
            for block, held in zip(self._cache.layer(layer), blocks, strict=True):
                block[:1] = held
        return _Graph(graph, tokens, positions, places, tables, contexts, logits)


def _size(rows: int) -> int:
    """The next power of two, or one and a half times one: at most a third is filled up for nothing."""
    power = 1 << (rows - 1).bit_length()
    return power * 3 // 4 if rows <= power * 3 // 4 and power >= 4 else power
