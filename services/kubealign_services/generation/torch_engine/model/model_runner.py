"""Model runner: executes the engine's forward passes over the model and its KV cache, one at a time.

The engine decides which sequences run and which token comes next; a runner only computes. The same passes
can therefore be executed by several processes, each with a slice of the model.
"""

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor

from kubealign_services.generation.torch_engine.attention.attention_plan import (
    EngineAttentionPlan,
    FullSequencePlan,
)
from kubealign_services.generation.torch_engine.attention.gathered_plan import GatheredPlan
from kubealign_services.generation.torch_engine.attention.gpu_plan import (
    DeviceBatch,
    GpuPlan,
    gpu_attention_works,
)
from kubealign_services.generation.torch_engine.attention.paged_plan import PagedPlan
from kubealign_services.generation.torch_engine.cpu.bfloat16_conversion import has_compiled_kernels
from kubealign_services.generation.torch_engine.cpu.kernel_threads import limit_threads
from kubealign_services.generation.torch_engine.kv_cache.paged_kv_cache import PagedKVCache
from kubealign_services.generation.torch_engine.model.adapter_merge import MergedAdapter
from kubealign_services.generation.torch_engine.model.causal_model import CausalModel
from kubealign_services.generation.torch_engine.model.cuda_graphs import DecodingGraphs
from kubealign_services.generation.torch_engine.model.weight_loader import WeightLoader
from kubealign_services.generation.torch_engine.ragged_batch import RaggedBatch
from kubealign_services.training.expert_routing import RoutingRecorder


class ModelRunner(Protocol):
    """The model, its KV cache and its weights. One thread calls it, in inference mode.

    context: largest number of tokens of a sequence. vocabulary: number of logits. device: device of the
    logits. page_bytes: bytes of one page over all layers, in this process.
    """

    context: int
    vocabulary: int
    device: torch.device
    page_bytes: int

    @property
    def pages(self) -> int:
        """Number of allocated pages. Fewer than were reserved, where the cache has been released since."""

    def reserve(self, pages: int) -> None:
        """Allocate pages numbered from 0; cached contents are kept."""

    def forward(self, batch: RaggedBatch) -> Tensor:
        """Return logits float32 [w, vocabulary] after the tokens at `batch.logit_indices`."""

    def copy_pages(self, sources: list[int], targets: list[int]) -> None:
        """Copy whole pages. No page may be both source and target."""

    def forward_sequence(self, tokens: list[int]) -> Tensor:
        """Return logits float32 [tokens, vocabulary] after each token of one sequence. Uses no page."""

    def load_weights(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Load all weights; see `WeightLoader.load`. Drops the adapter."""

    def load_adapter(self, tensors: Iterable[tuple[str, Tensor]], scale: float) -> None:
        """Merge an adapter; see `MergedAdapter.merge`."""

    def on_idle(self) -> None:
        """Note that nothing runs: the next pass may be far away."""


class LocalModelRunner:
    """Model runner of a single process."""

    def __init__(self, model: CausalModel, shares_cores: bool = False) -> None:
        """Create the cache for a model.

        Args:
            shares_cores: Other processes compute on the same cores at the same time.
        """
        self.context, self.vocabulary, self.device = model.context, model.vocabulary, model.device
        self.model = model
        self._weights = WeightLoader(model.module)
        self._adapters = MergedAdapter(model.module)
        shapes = {layer: use.kv_shape for layer, use in model.layers.items()}
        self._cache = PagedKVCache(shapes, model.dtype, model.device)
        self.page_bytes = self._cache.page_bytes
        on_gpu = self.device.type == "cuda"
        self._limit_threads = limit_threads if shares_cores and not on_gpu else _keep_threads
        self._uses_gpu_kernel = on_gpu and gpu_attention_works(
            model.layers.values(), model.dtype, self.device
        )
        self._graphs = DecodingGraphs(model, self._cache) if self._uses_gpu_kernel else None

    def record_routing(self) -> RoutingRecorder:
        """Record the experts that the model chooses, from now on. Raises UnsupportedRouting.

        Passes are then not recorded as CUDA graphs, whose replay calls no router.
        """
        recorder = RoutingRecorder(self.model.module)
        self._graphs = None
        return recorder

    @property
    def pages(self) -> int:
        return self._cache.pages

    def reserve(self, pages: int) -> None:
        if self._graphs is not None and pages > self._cache.pages:
            self._graphs.clear()
        self._cache.reserve(pages)

    def forward(self, batch: RaggedBatch) -> Tensor:
        logits = None if self._graphs is None else self._graphs.run(batch)
        if logits is not None:
            return logits
        tokens, positions, indices = (
            torch.from_numpy(array).to(self.device)
            for array in (batch.tokens, batch.positions, batch.logit_indices)
        )
        with self._limit_threads(len(tokens)):
            return self.model.forward(tokens, positions, self._plan(batch), keep=indices)

    def _plan(self, batch: RaggedBatch) -> EngineAttentionPlan:
        if has_compiled_kernels(self.device, self.model.dtype):
            return PagedPlan(batch, self._cache, self.model.dtype)
        if self._uses_gpu_kernel:
            return GpuPlan(self._cache, DeviceBatch.copy_of(batch, self.device))
        return GatheredPlan(batch, self._cache, self.model.dtype, self.device)

    def copy_pages(self, sources: list[int], targets: list[int]) -> None:
        self._cache.copy(sources, targets)

    def forward_sequence(self, tokens: list[int]) -> Tensor:
        ids = torch.tensor(tokens, device=self.device)
        at = torch.arange(len(tokens), device=ids.device)
        return self.model.forward(ids, at, FullSequencePlan(), keep=None)

    def load_weights(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        self._adapters.forget()
        self.model.invalidate_weights()
        self._weights.load(tensors)

    def load_adapter(self, tensors: Iterable[tuple[str, Tensor]], scale: float) -> None:
        self.model.invalidate_weights()
        self._adapters.merge(tensors, scale)

    def on_idle(self) -> None:
        """Do nothing: no other process waits for this one."""


def _keep_threads(_: int) -> AbstractContextManager[None]:
    return nullcontext()
