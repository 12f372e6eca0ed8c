"""Leader of several processes that share a model: the model runner of the first process's engine."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

import torch
import torch.distributed as dist
from google.protobuf.message import Message
from torch import Tensor

from kubealign_services.generation.torch_engine.adapted_weights import AdaptedWeights
from kubealign_services.generation.torch_engine.ragged import RaggedBatch
from kubealign_services.generation.torch_engine.tensor_parallel.batches import numbers_of
from kubealign_services.generation.torch_engine.tensor_parallel.model import SlicedModel
from kubealign_services.generation.torch_engine.tensor_parallel.orders import Leading, Numbers, Order
from kubealign_services.generation.torch_engine.tensor_parallel.sliced_passes import SlicedPasses
from kubealign_services.generation.torch_engine.weights import CheckpointWeights
from kubealign_services.training.slices import WeightSlice


@runtime_checkable
class Announced(Protocol):
    """The weight slices that this process has fetched for itself; with `announcement`, serialised, the other
    processes fetch theirs.
    """

    @property
    def announcement(self) -> Message: ...

    def slices(self) -> Iterator[WeightSlice]: ...


class PartsMissing(RuntimeError):
    """Other processes could not load their slices of new weights. The group can continue with the next
    weights.
    """


class ProcessesLost(RuntimeError):
    """A process of the model is gone, or the first one failed where the others did not: the group must
    restart as a whole.
    """


class LedPasses:
    """A ModelRunner that broadcasts each operation to the other processes and executes it together with them.

    Weights and adapters are validated before anything is broadcast, so that no process continues alone.
    on_loss: called once, on the calling thread, when the processes cannot continue together.
    """

    def __init__(
        self,
        model: SlicedModel,
        passes: SlicedPasses,
        leading: Leading,
        on_loss: Callable[[ProcessesLost], None],
    ) -> None:
        self.context, self.vocabulary, self.device = passes.context, passes.vocabulary, passes.device
        self.page_bytes = passes.page_bytes
        self._passes = passes
        self._leading = leading
        self._on_loss = on_loss
        self._lost: str | None = None
        self._weights = CheckpointWeights(model.whole, self._hand_out)
        self._expected = CheckpointWeights(model.whole, lambda name, tensor: None)
        self._whole_adapter = AdaptedWeights(model.whole)
        self._places = {name: index for index, name in enumerate(passes.names)}

    @property
    def pages(self) -> int:
        return self._passes.pages

    def reserve(self, pages: int) -> None:
        with self._told(Order.RESERVE, (pages,)):
            self._passes.reserve(pages)

    def run(self, batch: RaggedBatch) -> Tensor:
        with self._told(Order.RUN, numbers_of(batch)):
            return self._passes.run(batch)

    def copy(self, sources: list[int], targets: list[int]) -> None:
        with self._told(Order.COPY, (*sources, *targets)):
            self._passes.copy(sources, targets)

    def score(self, tokens: list[int]) -> Tensor:
        with self._told(Order.SCORE, tokens):
            return self._passes.score(tokens)

    def take(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Load all weights; see `ModelRunner.load_weights`. Each process fetches its own slices of
        AnnouncedWeights. Raises PartsMissing.
        """
        self._whole_adapter.forget()
        if isinstance(tensors, Announced):
            self._take_announced(tensors)
        else:
            self._weights.take(tensors)

    def adapt(self, tensors: Iterable[tuple[str, Tensor]], scale: float) -> None:
        layers = self._whole_adapter.fitting(tensors)
        named = [entry for layer, adapter in layers.items() for entry in adapter.named(layer)]
        shapes = {name: list(tensor.shape) for name, tensor in named}
        with self._told(Order.ADAPTER, [*json.dumps([scale, shapes]).encode()]):
            parts = [(name, tensor.to(self.device, torch.float32).contiguous()) for name, tensor in named]
            for _, part in parts:
                dist.broadcast(part, src=0)
            self._passes.adapt(parts, scale)

    def rest(self) -> None:
        if self._lost is None:
            with self._together():
                self._leading.rest()

    def end(self) -> None:
        """Shut down the other processes, if they are reachable."""
        if self._lost is None:
            with self._told(Order.END, ()):
                pass

    def _take_announced(self, parts: Announced) -> None:
        wrong: ValueError | None = None

        def checked() -> Iterator[tuple[str, Tensor]]:
            """Yield each slice for validation, without memory, and copy it after it has passed."""
            for part in parts.slices():
                yield part.name, torch.empty(part.shape, dtype=part.tensor.dtype, device="meta")
                self._passes.take_own([part])

        with self._told(Order.FETCH, [*parts.announcement.SerializeToString()]):
            try:
                self._expected.take(checked())
            except ValueError as error:
                wrong = error
            outcomes = self._passes.outcomes("")
        if wrong is not None:
            raise wrong
        failed = [f"process {rank}: {outcome}" for rank, outcome in enumerate(outcomes) if outcome]
        if failed:
            raise PartsMissing(f"weights did not reach all of this worker's processes: {'; '.join(failed)}")

    def _hand_out(self, name: str, tensor: Tensor) -> None:
        with self._told(Order.WEIGHT, (self._places[name],)):
            self._passes.lead_weight(name, tensor)

    @contextmanager
    def _told(self, order: Order, numbers: Numbers) -> Iterator[None]:
        with self._together():
            self._leading.send(order, numbers)
            yield

    @contextmanager
    def _together(self) -> Iterator[None]:
        if self._lost is not None:
            raise ProcessesLost(self._lost)
        try:
            yield
        except Exception as error:
            self._lost = f"the engine's processes cannot go on together: {type(error).__name__}: {error}"
            lost = ProcessesLost(self._lost)
            self._on_loss(lost)
            raise lost from error
