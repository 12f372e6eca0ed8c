"""The torch training backend: one model on one or several ranks, trained on packed microbatches."""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from kubealign.spec.sections.training import HeadInit, TorchBackendSpec, Trainer
from kubealign_services.algorithms.contract import Objective
from kubealign_services.batch.packed import Batch
from kubealign_services.runtime.offload.host_offloader import make_offloader
from kubealign_services.training.adapters.quantization import check_quantization_installed
from kubealign_services.training.contract import AdapterSnapshot, Head, NonFiniteLoss, UpdatePlan
from kubealign_services.training.expert_routing import without_routing
from kubealign_services.training.files.hf_heads import HeadPooling
from kubealign_services.training.torch_backend.checkpoints.checkpoint import load_shard, save_shard
from kubealign_services.training.torch_backend.checkpoints.export import export_folder, stream_weights
from kubealign_services.training.torch_backend.checkpoints.local_slices import (
    local_weight_slices,
    matches_checkpoint_layout,
)
from kubealign_services.training.torch_backend.context_parallel.context_group import join_context_group
from kubealign_services.training.torch_backend.context_parallel.selfcheck import check_context_parallel
from kubealign_services.training.torch_backend.loss_scaling import MINIMUM_SCALE, LossScaler
from kubealign_services.training.torch_backend.malloc_trim import MallocTrimmer
from kubealign_services.training.torch_backend.model.cpu_linear import patch_cpu_linear
from kubealign_services.training.torch_backend.model.fsdp import local_shard, reshard, shard_model
from kubealign_services.training.torch_backend.model.loading import load_model
from kubealign_services.training.torch_backend.model.lora import (
    adapted_layers,
    adapter_scale,
    adapters_disabled,
    add_adapters,
    stream_adapter,
)
from kubealign_services.training.torch_backend.model.nf4_linear import quantize_layers, weight_shapes
from kubealign_services.training.torch_backend.model.packed_model import PackedModel, has_dropout
from kubealign_services.training.torch_backend.optimizer import (
    clip_gradients,
    gradient_norm,
    set_learning_rate,
    step_optimizer,
)
from kubealign_services.training.torch_backend.optimizers.factory import make_optimizer, require_packages
from kubealign_services.training.torch_backend.packing.microbatches import minibatches
from kubealign_services.training.torch_backend.passes.activation_offload import ActivationOffload
from kubealign_services.training.torch_backend.passes.forward_cache import ForwardCache
from kubealign_services.training.torch_backend.passes.microbatch_passes import (
    MinibatchMetrics,
    RankContext,
    average_metrics,
    run_forward,
    run_forward_and_cache,
    run_objective,
)
from kubealign_services.training.torch_backend.precision import compute_device, compute_dtype
from kubealign_services.training.weight_slices import WeightSlice

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ModelOrigin:
    """Origin of a model, for its export.

    Args:
        folder: Hugging Face folder that the model was loaded from.
        pooling: Pooling that an exported reward model's config states.
        scores: Names of the reward model's scores; empty for a score without a name.
    """

    folder: Path
    pooling: HeadPooling | None = None
    scores: Sequence[str] = ()


class TorchTrainingBackend:
    """`TrainingBackend` in plain PyTorch, for any Hugging Face causal language model that runs packed."""

    def __init__(
        self,
        model: PackedModel,
        spec: Trainer,
        total_updates: int,
        context: RankContext,
        origin: ModelOrigin,
    ) -> None:
        """Use `create` instead.

        Args:
            model: On its device, sharded where required.
        """
        self.model = model
        self._optimizer_spec = spec.optimizer
        self._lora = spec.lora
        self._dtype = compute_dtype(_torch_spec(spec).precision)
        self._total_updates = total_updates
        self._context = context
        self._origin = origin
        self._optimizer = make_optimizer(model, spec.optimizer)
        self.loss_scaler = LossScaler(context.device) if self._dtype is torch.float16 else None
        self._updates = 0
        self._offloader = make_offloader(self._resident_tensors, context.device)
        self._malloc_trimmer = MallocTrimmer(context.device)
        self._clear_forward_cache()

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
    ) -> "TorchTrainingBackend":
        """Create the model of a Hugging Face folder with its first weights, on all ranks.

        Several ranks need a process group, as `CommandGroup` creates it. Raises what `require_packages`,
        `check_quantization_installed`, `load_model`, `join_context_group`, `check_context_parallel`,
        `quantize_layers`, `add_adapters`, `shard_model` and `make_optimizer` raise.

        Args:
            total_updates: Optimiser steps of the whole job, for the learning rate schedule.
            seed: Seed of a randomly initialised SCORE head.
            pooling: Pooling that an exported reward model's config states.
            scores: Names of the reward model's scores; empty for a score without a name.
            attributes: Weight of each score of the reward model that a VALUE head starts from; None for a
                reward model with a single score.
        """
        torch_spec = _torch_spec(spec)
        require_packages(spec.optimizer)
        check_quantization_installed(None if spec.lora is None else spec.lora.quantization)
        device = compute_device()
        if device.type == "cuda":
            torch.cuda.set_device(device)
        # Frozen weights need no more precision than the arithmetic has.
        dtype = torch.float32 if spec.lora is None else compute_dtype(torch_spec.precision)
        group = join_context_group(torch_spec.context_parallel, world_size, spec.step_timeout_seconds)
        model = load_model(folder, head, dtype, head_init, seed, scores, attributes)
        if group is not None:
            check_context_parallel(model, group, world_size)
        if head is Head.LANGUAGE_MODEL:
            model.prepare_routers()
        if spec.lora is not None:
            if spec.lora.quantization is not None:
                quantize_layers(model.backbone, spec.lora.quantization)
            add_adapters(model, spec.lora, seed)
            patch_cpu_linear(model)
        model = model.to(device)
        if torch_spec.gradient_checkpointing:
            enable: Any = model.backbone.activation_checkpointing_enable
            enable(activation_checkpointing_kwargs={"use_reentrant": False})
        _log_size(model, folder)
        shard_model(model, torch_spec.precision, world_size, device)
        # On a CPU the activations are in host memory already.
        offload = (
            ActivationOffload(device) if torch_spec.activation_offload and device.type != "cpu" else None
        )
        context = RankContext(
            rank,
            world_size,
            device,
            torch_spec.microbatch_tokens,
            context_group=group,
            activation_offload=offload,
        )
        return cls(model, spec, total_updates, context, ModelOrigin(folder, pooling, scores))

    @property
    def updates(self) -> int:
        """Number of optimiser steps since the first weights, without skipped ones."""
        return self._updates

    def train_step(self, batch: Batch, objective: Objective, plan: UpdatePlan) -> dict[str, float]:
        """See TrainingBackend. Dropout, where the model's config has it, is drawn from the plan's seed."""
        self._offloader.mark_changed()
        cache, has_cached_passes = self._forward_cache, len(self._forward_cache) > 0
        self._clear_forward_cache()
        torch.manual_seed((plan.seed + self._context.rank) % (1 << 63))
        self.model.train()
        try:
            steps = [
                self._update(minibatch, objective, cache)
                for minibatch in minibatches(
                    batch, objective.unit, plan.epochs, plan.minibatch_sequences, plan.seed
                )
            ]
        finally:
            self._optimizer.zero_grad(set_to_none=True)
            self.model.eval()
            if not has_cached_passes:  # else the next step's passes reuse this step's memory
                self._malloc_trimmer.maybe_trim()
        metrics = average_metrics(steps)
        if self.loss_scaler is not None:
            metrics["loss_scale"] = self.loss_scaler.scale
            metrics["skipped_updates"] = float(sum(norm is None for _, norm, _ in steps))
        return metrics

    def _update(
        self, minibatch: Batch, objective: Objective, cache: ForwardCache
    ) -> tuple[MinibatchMetrics, float | None, float]:
        """Run one optimiser step. Returns its metrics, gradient norm and learning rate.

        The norm is None when the step was skipped, because the gradient overflows in fp16. The forward cache
        is empty afterwards: later passes use other weights.
        """
        self._optimizer.zero_grad(set_to_none=True)
        objective.prepare(minibatch)
        scale = 1.0 if self.loss_scaler is None else self.loss_scaler.scale
        metrics = run_objective(self.model, minibatch, objective, self._context, cache, scale)
        if not math.isfinite(metrics.loss):
            raise self._non_finite(metrics.loss, gradient_norm(self.model.parameters()) / scale)
        if self.loss_scaler is not None and self.loss_scaler.unscale(self._optimizer):
            return metrics, None, self._skip_update(self.loss_scaler)
        norm = gradient_norm(self.model.parameters())
        if not math.isfinite(norm):
            raise self._non_finite(metrics.loss, norm)
        clip_gradients(self.model.parameters(), norm, self._optimizer_spec.gradient_clip_norm or None)
        rate = step_optimizer(self._optimizer, self._optimizer_spec, self._updates, self._total_updates)
        self._updates += 1
        return metrics, norm, rate

    def _skip_update(self, scaler: LossScaler) -> float:
        """Leave the weights as they are after a gradient that overflows. Returns the learning rate.

        The schedule does not advance, as in transformers. Raises NonFiniteLoss when the loss scale has fallen
        below its minimum.
        """
        number = self._updates + 1
        if scaler.is_exhausted:
            raise NonFiniteLoss(
                f"at optimiser step {number} the gradient is NaN or infinite in Float16 even at a loss scale "
                f"of {MINIMUM_SCALE:g}, the minimum; the weights stay as they were. Set precision BFloat16 "
                "or Float32, or a lower learning rate"
            )
        log.info("optimiser step skipped: overflow", extra={"update": number, "loss_scale": scaler.scale})
        return set_learning_rate(self._optimizer, self._optimizer_spec, self._updates, self._total_updates)

    def _non_finite(self, loss: float, norm: float) -> NonFiniteLoss:
        return NonFiniteLoss(
            f"at optimiser step {self._updates + 1} the loss is {loss}, "
            f"the gradient's norm {norm}; the weights stay as they were"
        )

    @torch.no_grad()
    def evaluate(self, batch: Batch, objective: Objective) -> dict[str, float]:
        """See TrainingBackend. Returns `loss`, the objective's sums and maxima."""
        objective.prepare(batch)
        metrics = run_objective(self.model, batch, objective, self._context)
        reshard(self.model)
        return {**metrics.sums, **metrics.maxima, "loss": metrics.loss}

    def forward(self, batch: Batch, outputs: frozenset[str]) -> dict[str, Tensor]:
        """See TrainingBackend. Raises ValueError for an output that the model has no head for."""
        columns = run_forward(self.model, batch, outputs, self._context)
        reshard(self.model)
        return columns

    def forward_and_cache(
        self, batch: Batch, outputs: frozenset[str], objective: Objective
    ) -> dict[str, Tensor]:
        """See ForwardCachingBackend.

        Nothing is cached of a sharded model, of a model with dropout, or beyond the tokens of one
        microbatch.
        """
        keeps = not isinstance(self.model, FSDPModule) and not has_dropout(self.model.backbone)
        if not (keeps and self._forward_cache.reserve_tokens(len(batch.tokens))):
            return self.forward(batch, outputs)
        self.model.train()  # as in the update: some models recompute activations only in training mode
        try:
            return run_forward_and_cache(
                self.model, batch, outputs, self._context, self._forward_cache, objective
            )
        finally:
            self.model.eval()

    def _clear_forward_cache(self) -> None:
        self._forward_cache = ForwardCache(self._context.microbatch_tokens)

    def base_forward(self, batch: Batch, outputs: frozenset[str]) -> dict[str, Tensor]:
        """See TrainingBackend. Holds no second copy of the weights: a quantised base stays quantised. Replays
        no recorded experts.
        """
        if self._lora is None:
            raise ValueError("all weights are trained: there is no adapter to disable")
        with adapters_disabled(self.model):
            return self.forward(without_routing(batch), outputs)

    def snapshot(self) -> Iterator[tuple[str, Tensor]]:
        """See TrainingBackend.

        The tensors are in the precision of the arithmetic and may share the model's memory until the next
        update.
        """
        return stream_weights(self.model, self._dtype, self._context.rank)

    def slices(self) -> Iterator[WeightSlice]:
        """See TrainingBackend.

        Each rank yields its part of the sharded weights. Rank 0 yields all gathered weights when an
        adapter is merged in or the checkpoint has another layout than the model.
        """
        if self._lora is None and matches_checkpoint_layout(self.model.backbone):
            yield from local_weight_slices(self.model, self._dtype, self._context.rank)
            return
        for name, tensor in self.snapshot():
            if self._context.rank == 0:
                yield WeightSlice.from_full_tensor(name, tensor)

    def adapter(self) -> AdapterSnapshot | None:
        """See TrainingBackend. In the precision of the arithmetic."""
        layer = next((layer for _, layer in adapted_layers(self.model.backbone)), None)
        if layer is None:
            return None
        return AdapterSnapshot(
            adapter_scale(layer), stream_adapter(self.model, self._dtype, self._context.rank)
        )

    def save(self, directory: Path) -> list[str]:
        """See TrainingBackend. The folder exists; the files are synced to disk on return."""
        return save_shard(
            directory,
            self.model,
            self._optimizer,
            self._updates,
            self._context.rank,
            self._context.world_size,
            self._lora,
            self.loss_scaler,
        )

    def load(self, directory: Path) -> None:
        """See TrainingBackend. On one rank, training continues bit for bit as after the save."""
        self._offloader.mark_changed()
        self._clear_forward_cache()
        self._updates = load_shard(
            directory,
            self.model,
            self._optimizer,
            self._context.rank,
            self._context.world_size,
            self._lora,
            self.loss_scaler,
        )
        log.info("shard loaded", extra={"directory": str(directory), "updates": self._updates})

    def offload(self) -> None:
        """Offload weights and moments to host memory: see `Offloadable`.

        No gradients exist between two commands.
        """
        reshard(self.model)
        self._clear_forward_cache()
        self._offloader.offload()

    def reload(self) -> None:
        """See `offload`."""
        self._offloader.reload()

    def _resident_tensors(self) -> Iterator[Tensor]:
        """Yield this rank's part of all tensors that persist between commands."""
        with torch.no_grad():
            yield from (local_shard(parameter) for parameter in self.model.parameters())
            yield from self.model.buffers()
            for state in self._optimizer.state.values():
                yield from (local_shard(moment) for moment in state.values() if isinstance(moment, Tensor))

    def export(self, directory: Path) -> None:
        """See TrainingBackend. A model with a value or score head becomes a sequence classifier."""
        export_folder(
            self.model,
            directory,
            self._origin.folder,
            self._dtype,
            self._origin.pooling,
            self._context.rank,
            self._origin.scores,
            self._lora,
        )


def _log_size(model: PackedModel, folder: Path) -> None:
    sizes = [(shape.numel(), is_trained) for shape, is_trained in weight_shapes(model)]
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


def _torch_spec(spec: Trainer) -> TorchBackendSpec:
    if spec.backend.torch is None:
        raise ValueError("trainer.backend.torch is not set: the spec names another backend")
    return spec.backend.torch
