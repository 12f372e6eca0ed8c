"""The Megatron training backend: one model split over tensor, pipeline, context and data-parallel ranks."""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from kubealign.spec.sections.training import HeadInit, Trainer
from kubealign_services.algorithms.contract import Objective
from kubealign_services.batch.packed import Batch
from kubealign_services.runtime.offload.host_offloader import make_offloader
from kubealign_services.training.collectives import all_gather_metrics
from kubealign_services.training.contract import (
    AdapterSnapshot,
    CorruptCheckpoint,
    Head,
    NonFiniteLoss,
    UpdatePlan,
)
from kubealign_services.training.files.hf_heads import HeadPooling
from kubealign_services.training.megatron_backend.loading import (
    ModelSource,
    StageModel,
    load_model,
    megatron_spec,
)
from kubealign_services.training.megatron_backend.model.lora import adapters_disabled
from kubealign_services.training.megatron_backend.optimizer.stage_optimizer import StageOptimizer
from kubealign_services.training.megatron_backend.pipeline import Pipeline
from kubealign_services.training.megatron_backend.weights.checkpoint import load_shards, save_shard
from kubealign_services.training.megatron_backend.weights.export_hf import (
    export_adapter,
    export_filter,
    send_slices,
    write_hf_folder,
)
from kubealign_services.training.megatron_backend.weights.rank_slices import (
    ParameterFilter,
    gather_tensors,
    is_adapter,
    is_trunk,
    local_slices,
)
from kubealign_services.training.torch_backend.packing.microbatches import minibatches
from kubealign_services.training.torch_backend.passes.microbatch_passes import (
    MinibatchMetrics,
    average_metrics,
)
from kubealign_services.training.torch_backend.precision import compute_dtype
from kubealign_services.training.weight_slices import WeightSlice

log = logging.getLogger(__name__)


class MegatronTrainingBackend:
    """`TrainingBackend` on megatron-core, for the model families of `model.architecture`."""

    def __init__(self, model: StageModel, spec: Trainer, total_updates: int) -> None:
        """Use `create` instead."""
        self._model = model
        self._lora = spec.lora
        self._scale = 1.0 if spec.lora is None else spec.lora.alpha / spec.lora.rank
        self._dtype = compute_dtype(megatron_spec(spec).precision)
        self._total_updates = total_updates
        self._optimizer = StageOptimizer(
            model.stage,
            spec.optimizer,
            model.conversion,
            model.groups,
            megatron_spec(spec).distributed_optimizer,
        )
        self._pipeline = Pipeline(
            model.stage,
            model.conversion.layout,
            model.world_size,
            model.device,
            megatron_spec(spec).microbatch_tokens,
        )
        self._updates = 0
        self._offloader = make_offloader(self._resident_tensors, model.device)

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
        pooling: HeadPooling | None = None,
        scores: Sequence[str] = (),
        attributes: Mapping[str, float] | None = None,
    ) -> "MegatronTrainingBackend":
        """Create the model of a Hugging Face folder with its first weights, on all ranks; arguments as for
        `TorchTrainingBackend.create`. Collective.

        Raises:
            UnsupportedTrainingModel: megatron-core does not compute the model as transformers does.
            UnsuitedLayout: The model cannot be split as the spec says.
            ValueError: The folder holds another kind of model.
        """
        source = ModelSource(folder, head, seed, head_init, pooling, tuple(scores), attributes)
        model, exact = load_model(source, spec, rank, world_size)
        backend = cls(model, spec, total_updates)
        if exact is not None:
            backend._optimizer.load_masters(exact)
        return backend

    @property
    def updates(self) -> int:
        """Number of optimiser steps since the first weights."""
        return self._updates

    def train_step(self, batch: Batch, objective: Objective, plan: UpdatePlan) -> dict[str, float]:
        """See TrainingBackend.

        The dropout of an adapter's inputs is drawn from the plan's seed, alike on the tensor ranks, which
        share the inputs.
        """
        self._offloader.mark_changed()
        stage = self._model.stage
        torch.manual_seed((plan.seed + self._model.conversion.layout.replica_rank) % (1 << 63))
        stage.train()
        try:
            steps = [
                self._update(minibatch, objective)
                for minibatch in minibatches(
                    batch, objective.unit, plan.epochs, plan.minibatch_sequences, plan.seed
                )
            ]
        finally:
            stage.eval()
        return average_metrics(steps)

    def _update(self, minibatch: Batch, objective: Objective) -> tuple[MinibatchMetrics, float, float]:
        """Run one optimiser step. Returns its metrics, gradient norm and learning rate."""
        self._optimizer.zero_grad()
        objective.prepare(minibatch)
        self._model.check_batch(minibatch, objective.outputs)
        metrics = self._pipeline.run_objective(minibatch, objective)
        norm = self._optimizer.reduce_gradients()
        if not (math.isfinite(metrics.loss) and math.isfinite(norm)):
            raise NonFiniteLoss(
                f"at optimiser step {self._updates + 1} the loss is {metrics.loss}, "
                f"the gradient's norm {norm}; the weights stay as they were"
            )
        rate = self._optimizer.step(norm, self._updates, self._total_updates)
        self._updates += 1
        return metrics, norm, rate

    @torch.no_grad()
    def evaluate(self, batch: Batch, objective: Objective) -> dict[str, float]:
        """See TrainingBackend. Returns `loss`, the objective's sums and maxima."""
        objective.prepare(batch)
        self._model.check_batch(batch, objective.outputs)
        metrics = self._pipeline.run_objective(batch, objective)
        return {**metrics.sums, **metrics.maxima, "loss": metrics.loss}

    def forward(self, batch: Batch, outputs: frozenset[str]) -> dict[str, Tensor]:
        """See TrainingBackend. Raises ValueError for an output that the model has no head for."""
        self._model.check_batch(batch, outputs)
        return self._pipeline.forward(batch, outputs, self._model.output_widths(batch))

    def base_forward(self, batch: Batch, outputs: frozenset[str]) -> dict[str, Tensor]:
        """See TrainingBackend. Holds no second copy of the weights."""
        if self._lora is None:
            raise ValueError("all weights are trained: there is no adapter to disable")
        with adapters_disabled(self._model.stage.trunk):
            return self.forward(batch, outputs)

    def snapshot(self) -> Iterator[tuple[str, Tensor]]:
        """See TrainingBackend. In the precision of the arithmetic; rank 0 holds one full tensor at a time."""
        return self._gather(is_trunk)

    def slices(self) -> Iterator[WeightSlice]:
        """See TrainingBackend. Not collective: the layout determines the slices of each rank."""
        model = self._model
        return local_slices(model.conversion, model.stage.weights(), self._dtype, scale=self._scale)

    def adapter(self) -> AdapterSnapshot | None:
        """See TrainingBackend. In the precision of the arithmetic."""
        if self._lora is None:
            return None
        return AdapterSnapshot(self._scale, self._gather(is_adapter))

    def save(self, directory: Path) -> list[str]:
        """See TrainingBackend. The folder exists; the files are synced to disk on return."""
        model = self._model
        states = self._optimizer.gather_states()
        return save_shard(directory, model.conversions, model.rank, states, self._updates, self._lora)

    def load(self, directory: Path) -> None:
        """See TrainingBackend.

        Reads checkpoints of ranks in any layout. A checkpoint that one rank cannot use is refused by all
        ranks, before anything is changed.
        """
        model = self._model
        failure, loaded = "", None
        try:
            loaded = load_shards(
                directory, model.conversions, model.rank, self._optimizer.parameters, self._lora
            )
        except CorruptCheckpoint as error:
            failure = str(error)
        failures = all_gather_metrics({"failures": {failure: 1.0}}, model.world_size)
        errors = [text for rank_failures in failures for text in rank_failures["failures"] if text]
        if errors or loaded is None:
            raise CorruptCheckpoint(errors[0])
        self._offloader.mark_changed()
        states, self._updates = loaded
        self._optimizer.load_state(states, self._updates)
        log.info("shards loaded", extra={"directory": str(directory), "updates": self._updates})

    def offload(self) -> None:
        """Offload weights, gradients and moments to host memory: see `Offloadable`."""
        self._offloader.offload()

    def reload(self) -> None:
        """See `offload`."""
        self._offloader.reload()

    def _resident_tensors(self) -> Iterator[Tensor]:
        """Yield this rank's part of all tensors that persist between commands."""
        with torch.no_grad():
            yield from self._model.stage.parameters()
            yield from self._model.stage.buffers()
            yield from self._optimizer.tensors()

    def export(self, directory: Path) -> None:
        """See TrainingBackend.

        A model with a value or score head becomes a sequence classifier; an adapter is also written alone,
        to `adapter/`.
        """
        model, source = self._model, self._model.source
        with_score = model.conversion.heads.scores > 0
        weights = self._gather(export_filter(with_score))
        if model.rank == 0:
            write_hf_folder(
                directory,
                source.folder,
                model.config,
                model.conversions,
                weights,
                self._dtype,
                source.pooling,
                source.scores,
            )
        else:
            send_slices(weights)
        if self._lora is not None:
            export_adapter(
                directory,
                source.folder,
                model.conversions,
                model.rank,
                model.stage.weights(),
                self._lora,
            )

    def _gather(self, keep: ParameterFilter) -> Iterator[tuple[str, Tensor]]:
        model = self._model
        return gather_tensors(
            model.conversions, model.rank, model.stage.weights(), self._dtype, keep, self._scale
        )
