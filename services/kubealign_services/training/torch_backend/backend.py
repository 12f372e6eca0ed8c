"""The torch training backend: one model on one or several ranks, trained on packed micro-batches."""

import logging
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from kubealign.spec.training import HeadInit, Trainer
from kubealign.spec.training import TorchBackend as TorchSpec
from kubealign_services.algorithms.contract import Objective
from kubealign_services.batch.packed import Batch
from kubealign_services.residence.swap import swapping
from kubealign_services.training.contract import AdapterSnapshot, Head, NonFiniteLoss, UpdatePlan
from kubealign_services.training.slices import WeightSlice
from kubealign_services.training.torch_backend.checkpoint import load_shard, save_shard
from kubealign_services.training.torch_backend.cpu_linear import use_cpu_linear
from kubealign_services.training.torch_backend.export import export_folder, stream_weights
from kubealign_services.training.torch_backend.freed_memory import FreedMemory
from kubealign_services.training.torch_backend.kept_passes import KeptPasses
from kubealign_services.training.torch_backend.lora import (
    adapted_layers,
    adapters_off,
    add_adapters,
    scale,
    stream_adapter,
)
from kubealign_services.training.torch_backend.microbatches import minibatches
from kubealign_services.training.torch_backend.models import load_model
from kubealign_services.training.torch_backend.optimizer import (
    clip_gradients,
    gradient_norm,
    make_adamw,
    step_at,
)
from kubealign_services.training.torch_backend.packed_model import PackedModel, drops
from kubealign_services.training.torch_backend.passes import (
    Figures,
    Place,
    averaged,
    run_forward,
    run_forward_and_keep,
    run_objective,
)
from kubealign_services.training.torch_backend.precision import compute_device, compute_dtype
from kubealign_services.training.torch_backend.sharding import local, reshard, shard
from kubealign_services.training.torch_backend.slices import has_own_layout, own_slices

log = logging.getLogger(__name__)


class TorchBackend:
    """`TrainingBackend` in plain PyTorch, for any Hugging Face causal language model that runs packed."""

    def __init__(
        self,
        model: PackedModel,
        spec: Trainer,
        total_updates: int,
        place: Place,
        source: Path,
        pooling: str | None,
        scores: Sequence[str] = (),
    ) -> None:
        """model: on its device, sharded where it should be. source: the folder that it came from. Use
        `create`."""
        self.model = model
        self._spec = spec.optimizer
        self._lora = spec.lora
        self._dtype = compute_dtype(_torch_spec(spec).precision)
        self._total_updates = total_updates
        self._place = place
        self._source = source
        self._pooling = pooling
        self._scores = scores
        self._optimizer = make_adamw(model, spec.optimizer.adam_w)
        self._updates = 0
        self._swap = swapping(self._tensors, place.device)
        self._freed = FreedMemory(place.device)
        self._forget_passes()

    @classmethod
    def create(
        cls,
        folder: Path,
        head: Head,
        spec: Trainer,
        total_updates: int,
        *,
        rank: int = 0,
        world_size: int = 1,
        seed: int = 0,
        head_init: HeadInit = HeadInit.ZERO,
        pooling: str | None = None,
        scores: Sequence[str] = (),
    ) -> "TorchBackend":
        """The model of a Hugging Face folder with its first weights, on all ranks.

        total_updates: optimiser steps of the whole job, for the schedule. seed: of a SCORE head that is
        drawn. pooling: what an exported reward model's config says of itself; scores: the names of its
        scores, empty for one without a name. Several ranks need a process group, as `CommandGroup` makes it.
        Raises what `load_model`, `add_adapters` and `shard` raise.
        """
        torch_spec = _torch_spec(spec)
        device = compute_device(rank)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        # What is frozen needs no more bits than the arithmetic has.
        dtype = torch.float32 if spec.lora is None else compute_dtype(torch_spec.precision)
        model = load_model(folder, head, dtype, head_init, seed, scores)
        if spec.lora is not None:
            add_adapters(model, spec.lora, seed)
            use_cpu_linear(model)
        model = model.to(device)
        if torch_spec.gradient_checkpointing:
            enable: Any = model.backbone.activation_checkpointing_enable
            enable(activation_checkpointing_kwargs={"use_reentrant": False})
        _log_size(model, folder)
        shard(model, torch_spec.precision, world_size, device)
        place = Place(rank, world_size, device, torch_spec.microbatch_tokens)
        return cls(model, spec, total_updates, place, folder, pooling, scores)

    @property
    def updates(self) -> int:
        """Optimiser steps done since the first weights."""
        return self._updates

    def train_step(self, batch: Batch, objective: Objective, plan: UpdatePlan) -> dict[str, float]:
        """See TrainingBackend. Dropout, where the model's config has it, is drawn from the plan's seed."""
        self._swap.changed()
        kept, again = self._kept, len(self._kept) > 0
        self._forget_passes()
        torch.manual_seed((plan.seed + self._place.rank) % (1 << 63))
        self.model.train()
        try:
            steps = [
                self._update(minibatch, objective, kept)
                for minibatch in minibatches(
                    batch, objective.unit, plan.epochs, plan.minibatch_sequences, plan.seed
                )
            ]
        finally:
            self._optimizer.zero_grad(set_to_none=True)
            self.model.eval()
            if not again:  # else the next step's passes lie where this one's did
                self._freed.settle()
        return averaged(steps)

    def _update(
        self, minibatch: Batch, objective: Objective, kept: KeptPasses
    ) -> tuple[Figures, float, float]:
        """One optimiser step: its figures, gradient norm and learning rate. Of `kept` nothing is left: what
        comes after has other weights."""
        self._optimizer.zero_grad(set_to_none=True)
        objective.prepare(minibatch)
        figures = run_objective(self.model, minibatch, objective, self._place, kept)
        norm = gradient_norm(self.model.parameters())
        if not (math.isfinite(figures.loss) and math.isfinite(norm)):
            raise NonFiniteLoss(
                f"at optimiser step {self._updates + 1} the loss is {figures.loss}, "
                f"the gradient's norm {norm}; the weights stay as they were"
            )
        clip_gradients(self.model.parameters(), norm, self._spec.gradient_clip_norm or None)
        rate = step_at(self._optimizer, self._spec, self._updates, self._total_updates)
        self._updates += 1
        return figures, norm, rate

    @torch.no_grad()
    def evaluate(self, batch: Batch, objective: Objective) -> dict[str, float]:
        """See TrainingBackend: `loss`, the objective's sums and maxima."""
        objective.prepare(batch)
        figures = run_objective(self.model, batch, objective, self._place)
        reshard(self.model)
        return {**figures.sums, **figures.maxima, "loss": figures.loss}

    def forward(self, batch: Batch, outputs: frozenset[str]) -> dict[str, Tensor]:
        """See TrainingBackend. Raises ValueError for an output that the model has no head for."""
        columns = run_forward(self.model, batch, outputs, self._place)
        reshard(self.model)
        return columns

    def forward_and_keep(
        self, batch: Batch, outputs: frozenset[str], objective: Objective
    ) -> dict[str, Tensor]:
        """See KeepsPasses. Nothing is kept of a model that is sharded or drops at random, nor of more tokens
        than a micro-batch may have."""
        keeps = not isinstance(self.model, FSDPModule) and not drops(self.model.backbone)
        if not (keeps and self._kept.reserve(len(batch.tokens))):
            return self.forward(batch, outputs)
        self.model.train()  # as in the update: some recompute activations only then
        try:
            return run_forward_and_keep(self.model, batch, outputs, self._place, self._kept, objective)
        finally:
            self.model.eval()

    def _forget_passes(self) -> None:
        self._kept = KeptPasses(self._place.microbatch_tokens)

    def base_forward(self, batch: Batch, outputs: frozenset[str]) -> dict[str, Tensor]:
        """See TrainingBackend. No second copy of the weights is held."""
        if self._lora is None:
            raise ValueError("all weights are trained: there is no adapter to switch off")
        with adapters_off(self.model):
            return self.forward(batch, outputs)

    def snapshot(self) -> Iterator[tuple[str, Tensor]]:
        """See TrainingBackend. In the precision of the arithmetic; tensors may share the model's memory until
        the next update."""
        return stream_weights(self.model, self._dtype, self._place.rank)

    def slices(self) -> Iterator[WeightSlice]:
        """See TrainingBackend: what each rank has of the sharded weights. Gathered and all of rank 0 where an
        adapter is merged in or the checkpoint has another layout than the model."""
        if self._lora is None and has_own_layout(self.model.backbone):
            yield from own_slices(self.model, self._dtype, self._place.rank)
            return
        for name, tensor in self.snapshot():
            if self._place.rank == 0:
                yield WeightSlice.whole(name, tensor)

    def adapter(self) -> AdapterSnapshot | None:
        """See TrainingBackend. In the precision of the arithmetic."""
        layer = next((layer for _, layer in adapted_layers(self.model.backbone)), None)
        if layer is None:
            return None
        return AdapterSnapshot(scale(layer), stream_adapter(self.model, self._dtype, self._place.rank))

    def save(self, directory: Path) -> list[str]:
        """See TrainingBackend. The folder exists; the files are on the disk when this returns."""
        return save_shard(
            directory,
            self.model,
            self._optimizer,
            self._updates,
            self._place.rank,
            self._place.world_size,
            self._lora,
        )

    def load(self, directory: Path) -> None:
        """See TrainingBackend. What follows is, on one rank, bit for bit what would have followed the
        save."""
        self._swap.changed()
        self._forget_passes()
        self._updates = load_shard(
            directory, self.model, self._optimizer, self._place.rank, self._place.world_size, self._lora
        )
        log.info("shard loaded", extra={"directory": str(directory), "updates": self._updates})

    def offload(self) -> None:
        """Weights and moments rest in the host's memory: see `residence.contract.Movable`. There are no
        gradients between two commands."""
        reshard(self.model)
        self._forget_passes()
        self._swap.offload()

    def reload(self) -> None:
        """See `offload`."""
        self._swap.reload()

    def _tensors(self) -> Iterator[Tensor]:
        """This rank's part of all that lasts from one command to the next."""
        with torch.no_grad():
            yield from (local(parameter) for parameter in self.model.parameters())
            yield from self.model.buffers()
            for state in self._optimizer.state.values():
                yield from (local(moment) for moment in state.values() if isinstance(moment, Tensor))

    def export(self, directory: Path) -> None:
        """See TrainingBackend. A model with a value or scores becomes a sequence classifier."""
        export_folder(
            self.model,
            directory,
            self._source,
            self._dtype,
            self._pooling,
            self._place.rank,
            self._scores,
            self._lora,
        )


def _log_size(model: PackedModel, folder: Path) -> None:
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    trained = sum(size for size, is_trained in sizes if is_trained)
    log.info(
        "model made",
        extra={
            "folder": str(folder),
            "parameters": sum(size for size, _ in sizes),
            "trainable_parameters": trained,
            "adapted_layers": sum(1 for _ in adapted_layers(model.backbone)),
        },
    )


def _torch_spec(spec: Trainer) -> TorchSpec:
    if spec.backend.torch is None:
        raise ValueError("trainer.backend.torch is not set: this spec is another backend's")
    return spec.backend.torch
