"""What the engine asks of the model and its cache, one forward pass at a time.

The engine decides which sequences run and which token comes next; here is computed, and nothing is decided.
So the same passes can be made by several processes that each hold a slice of the model.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor

from kubealign_services.generation.torch_engine.adapted_weights import AdaptedWeights
from kubealign_services.generation.torch_engine.attention import AttentionPlan, WholePlan
from kubealign_services.generation.torch_engine.cache import PagedCache
from kubealign_services.generation.torch_engine.cpu.few_rows import threads_for
from kubealign_services.generation.torch_engine.cpu.paged_plan import PagedPlan
from kubealign_services.generation.torch_engine.cuda.decoding_graphs import DecodingGraphs
from kubealign_services.generation.torch_engine.cuda.flash_plan import FlashPlan, flash_works
from kubealign_services.generation.torch_engine.gathered_plan import GatheredPlan
from kubealign_services.generation.torch_engine.model import CausalModel
from kubealign_services.generation.torch_engine.ragged import RaggedBatch
from kubealign_services.generation.torch_engine.weights import CheckpointWeights


class Passes(Protocol):
    """The model, its cache and its weights. One thread calls it, in inference mode.

    context: most tokens of a sequence. vocabulary: number of logits. device: where logits are. page_bytes:
    of one page over all layers, on this process.
    """

    context: int
    vocabulary: int
    device: torch.device
    page_bytes: int

    @property
    def pages(self) -> int:
        """How many there are. Fewer than were reserved, where the cache was given back meanwhile."""

    def reserve(self, pages: int) -> None:
        """Have so many pages, numbered from 0; what is cached stays."""

    def run(self, batch: RaggedBatch) -> Tensor:
        """Logits [w, vocabulary] float32 after the tokens that are wanted."""

    def copy(self, sources: list[int], targets: list[int]) -> None:
        """Whole pages. None may be both."""

    def score(self, tokens: list[int]) -> Tensor:
        """Logits [tokens, vocabulary] float32 after each token of one sequence. Touches no page."""

    def take(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """All weights, as `CheckpointWeights.take`; an adapter is forgotten."""

    def adapt(self, tensors: Iterable[tuple[str, Tensor]], scale: float) -> None:
        """An adapter, as `AdaptedWeights.take`."""

    def rest(self) -> None:
        """Nothing runs: no pass may come for a long time."""


class LocalPasses:
    """Passes of one process."""

    def __init__(self, model: CausalModel, shares_cores: bool = False) -> None:
        """shares_cores: other processes compute on this one's cores meanwhile."""
        self.context, self.vocabulary, self.device = model.context, model.vocabulary, model.device
        self.model = model
        self._weights = CheckpointWeights(model.module)
        self._adapted = AdaptedWeights(model.module)
        shapes = {layer: use.kept for layer, use in model.layers.items()}
        self._cache = PagedCache(shapes, model.dtype, model.device)
        self.page_bytes = self._cache.page_bytes
        on_gpu = self.device.type == "cuda"
        self._threads_for = threads_for if shares_cores and not on_gpu else _as_they_are
        self._flash = on_gpu and flash_works(model.layers.values(), model.dtype, self.device)
        self._graphs = DecodingGraphs(model, self._cache) if self._flash else None

    @property
    def pages(self) -> int:
        return self._cache.pages

    def reserve(self, pages: int) -> None:
        if self._graphs is not None and pages > self._cache.pages:
            self._graphs.forget()
        self._cache.reserve(pages)

    def run(self, batch: RaggedBatch) -> Tensor:
        logits = None if self._graphs is None else self._graphs.run(batch)
        if logits is not None:
            return logits
        tokens, positions, wanted = (
            torch.from_numpy(array).to(self.device) for array in (batch.tokens, batch.positions, batch.wanted)
        )
        with self._threads_for(len(tokens)):
            return self.model.forward(tokens, positions, self._plan(batch), keep=wanted)

    def _plan(self, batch: RaggedBatch) -> AttentionPlan:
        if self.device.type == "cpu":
            return PagedPlan(batch, self._cache, self.model.dtype)
        if self._flash:
            return FlashPlan.of(batch, self._cache, self.device)
        return GatheredPlan(batch, self._cache, self.model.dtype, self.device)

    def copy(self, sources: list[int], targets: list[int]) -> None:
        self._cache.copy(sources, targets)

    def score(self, tokens: list[int]) -> Tensor:
        ids = torch.tensor(tokens, device=self.device)
        at = torch.arange(len(tokens), device=ids.device)
        return self.model.forward(ids, at, WholePlan(), keep=None)

    def take(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        self._adapted.forget()
        self.model.renewed()
        self._weights.take(tensors)

    def adapt(self, tensors: Iterable[tuple[str, Tensor]], scale: float) -> None:
        self.model.renewed()
        self._adapted.take(tensors, scale)

    def rest(self) -> None:
        """There is nobody to tell."""


def _as_they_are(_: int) -> AbstractContextManager[None]:
    return nullcontext()
