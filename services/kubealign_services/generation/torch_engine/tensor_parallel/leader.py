"""Leader of several processes that share a model: the model runner of the first process's engine."""

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol, runtime_checkable

import torch
import torch.distributed as dist
from google.protobuf.message import Message
from torch import Tensor

from kubealign_services.generation.expected_weights import ExpectedWeights
from kubealign_services.generation.torch_engine.model.adapter_merge import MergedAdapter
from kubealign_services.generation.torch_engine.ragged_batch import RaggedBatch
from kubealign_services.generation.torch_engine.tensor_parallel.commands import (
    Command,
    CommandSender,
    Numbers,
    encode_batch,
)
from kubealign_services.generation.torch_engine.tensor_parallel.sharded_model import ShardedModel
from kubealign_services.generation.torch_engine.tensor_parallel.sharded_runner import ShardedModelRunner
from kubealign_services.training.weight_slices import WeightSlice


@runtime_checkable
class AnnouncedWeights(Protocol):
    """The weight slices that this process has fetched for itself; with `announcement`, serialised, the other
    processes fetch theirs.
    """

    @property
    def announcement(self) -> Message: ...

    def slices(self) -> Iterator[WeightSlice]: ...


class PartsMissing(RuntimeError):
    """Other processes could not load their slices of new weights.

    The group can continue with the next weights.
    """


class ProcessesLost(RuntimeError):
    """A process of the model is gone, or the first one failed where the others did not: the group must
    restart as a whole.
    """


class LeaderModelRunner:
    """A ModelRunner that broadcasts each operation to the other processes and executes it together with them.

    Weights and adapters are validated before anything is broadcast, so that no process continues alone.
    on_loss: called once, on the calling thread, when the processes cannot continue together.
    """

    def __init__(
        self,
        model: ShardedModel,
        runner: ShardedModelRunner,
        commands: CommandSender,
        on_loss: Callable[[ProcessesLost], None],
    ) -> None:
        self.context, self.vocabulary, self.device = runner.context, runner.vocabulary, runner.device
        self.page_bytes = runner.page_bytes
        self._runner = runner
        self._commands = commands
        self._on_loss = on_loss
        self._lost_cause: str | None = None
        self._expected = ExpectedWeights(model.full_model)
        self._adapter_validator = MergedAdapter(model.full_model)
        self._weight_indices = {name: index for index, name in enumerate(runner.names)}

    @property
    def pages(self) -> int:
        return self._runner.pages

    def reserve(self, pages: int) -> None:
        with self._sent_command(Command.RESERVE, (pages,)):
            self._runner.reserve(pages)

    def forward(self, batch: RaggedBatch) -> Tensor:
        with self._sent_command(Command.RUN, encode_batch(batch)):
            return self._runner.forward(batch)

    def copy_pages(self, sources: list[int], targets: list[int]) -> None:
        with self._sent_command(Command.COPY, (*sources, *targets)):
            self._runner.copy_pages(sources, targets)

    def forward_sequence(self, tokens: list[int]) -> Tensor:
        with self._sent_command(Command.SCORE, tokens):
            return self._runner.forward_sequence(tokens)

    def load_weights(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Load all weights; see `ModelRunner.load_weights`.

        Each process fetches its own slices of AnnouncedWeights. Raises PartsMissing.
        """
        self._adapter_validator.forget()
        if isinstance(tensors, AnnouncedWeights):
            self._load_announced(tensors)
        else:
            with torch.no_grad():
                for name, tensor in self._expected.check(tensors):
                    self._distribute_weight(name, tensor)

    def load_adapter(self, tensors: Iterable[tuple[str, Tensor]], scale: float) -> None:
        layers = self._adapter_validator.validate(tensors)
        named = [entry for layer, adapter in layers.items() for entry in adapter.named_tensors(layer)]
        shapes = {name: list(tensor.shape) for name, tensor in named}
        with self._sent_command(Command.ADAPTER, [*json.dumps([scale, shapes]).encode()]):
            parts = [(name, tensor.to(self.device, torch.float32).contiguous()) for name, tensor in named]
            for _, part in parts:
                dist.broadcast(part, src=0)
            self._runner.load_adapter(parts, scale)

    def on_idle(self) -> None:
        if self._lost_cause is None:
            with self._guarded():
                self._commands.send_rest()

    def shut_down(self) -> None:
        """Shut down the other processes, if they are reachable."""
        if self._lost_cause is None:
            with self._sent_command(Command.END, ()):
                pass

    def _load_announced(self, parts: AnnouncedWeights) -> None:
        invalid: ValueError | None = None

        def shapes() -> Iterator[tuple[str, Tensor]]:
            """Yield each slice without memory, and copy it once it has passed the check."""
            for part in parts.slices():
                yield part.name, torch.empty(part.shape, dtype=part.tensor.dtype, device="meta")
                self._runner.load_own_slices([part])

        with self._sent_command(Command.FETCH, [*parts.announcement.SerializeToString()]):
            try:
                with torch.no_grad():
                    deque(self._expected.check(shapes()), maxlen=0)
            except ValueError as error:
                invalid = error
            outcomes = self._runner.gather_outcomes("")
        if invalid is not None:
            raise invalid
        failed = [f"process {rank}: {outcome}" for rank, outcome in enumerate(outcomes) if outcome]
        if failed:
            raise PartsMissing(f"weights did not reach all of this worker's processes: {'; '.join(failed)}")

    def _distribute_weight(self, name: str, tensor: Tensor) -> None:
        with self._sent_command(Command.WEIGHT, (self._weight_indices[name],)):
            self._runner.send_weight(name, tensor)

    @contextmanager
    def _sent_command(self, command: Command, numbers: Numbers) -> Iterator[None]:
        with self._guarded():
            self._commands.send(command, numbers)
            yield

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        if self._lost_cause is not None:
            raise ProcessesLost(self._lost_cause)
        try:
            yield
        except Exception as error:
            self._lost_cause = (
                f"the engine's processes cannot go on together: {type(error).__name__}: {error}"
            )
            lost = ProcessesLost(self._lost_cause)
            self._on_loss(lost)
            raise lost from error
