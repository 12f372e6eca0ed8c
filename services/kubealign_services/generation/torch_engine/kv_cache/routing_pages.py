"""Recorded experts of the tokens in the cache's pages.

A token's experts are stored under the same page and slot as its keys and values, so that whatever shares or
copies pages (a cached prefix, the samples of one prompt) shares the record.
"""

import numpy as np
from numpy.typing import NDArray

from kubealign_services.generation.torch_engine.attention.gathered_plan import slot_mapping
from kubealign_services.generation.torch_engine.kv_cache.page_pool import Pages
from kubealign_services.generation.torch_engine.ragged_batch import PAGE_TOKENS, RaggedBatch
from kubealign_services.training.expert_routing import Routing, RoutingShape


class RoutingPages:
    """Experts [pages, PAGE_TOKENS, layers, k] in host memory; grows with the pages that are written."""

    def __init__(self, shape: RoutingShape) -> None:
        self._pages: Routing = np.zeros((0, PAGE_TOKENS, shape.layers, shape.top_k), shape.dtype)

    def store(self, batch: RaggedBatch, routing: Routing) -> None:
        """Store the experts [T, layers, k] of a pass's tokens, before the batch's arrays change."""
        slots = slot_mapping(batch)
        self._reserve(int(slots.max()) // PAGE_TOKENS + 1)
        self._pages.reshape(-1, *routing.shape[1:])[slots] = routing

    def copy(self, sources: list[int], targets: list[int]) -> None:
        """Copy whole pages."""
        if targets:
            self._reserve(max(targets) + 1)
            self._pages[targets] = self._pages[sources]

    def gather(self, pages: Pages, start: int, stop: int) -> Routing:
        """Return the experts of a sequence's positions `start` to `stop` - 1, [n, layers, k].

        Args:
            pages: The sequence's pages, in order.
        """
        positions: NDArray[np.int64] = np.arange(start, max(start, stop))
        recorded: Routing = self._pages[pages[positions // PAGE_TOKENS], positions % PAGE_TOKENS]
        return recorded

    def _reserve(self, pages: int) -> None:
        missing = pages - len(self._pages)
        if missing > 0:
            more = max(missing, len(self._pages))
            self._pages = np.concatenate(
                (self._pages, np.zeros((more, *self._pages.shape[1:]), self._pages.dtype))
            )
