"""Forward and backward passes over planned microbatches, and their totals over all ranks."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from kubealign_services.algorithms.contract import ModelOutputs, Objective
from kubealign_services.batch.packed import Batch
from kubealign_services.training.collectives import all_gather_metrics, all_reduce_sum
from kubealign_services.training.torch_backend.context_parallel.context_group import ContextGroup
from kubealign_services.training.torch_backend.model.packed_model import PackedModel, PackedTokens
from kubealign_services.training.torch_backend.packing.microbatches import Microbatch, plan_microbatches
from kubealign_services.training.torch_backend.passes.activation_offload import ActivationOffload
from kubealign_services.training.torch_backend.passes.balanced_passes import balanced_passes
from kubealign_services.training.torch_backend.passes.forward_cache import ForwardCache


@dataclass
class MinibatchMetrics:
    """A minibatch's loss and metrics: of this rank during the passes, of all ranks after `all_reduce`."""

    loss: float = 0.0
    sums: dict[str, float] = field(default_factory=dict)
    maxima: dict[str, float] = field(default_factory=dict)

    def add(self, loss: float, sums: dict[str, float], maxima: dict[str, float]) -> None:
        self.loss += loss
        for name, value in sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
        for name, value in maxima.items():
            self.maxima[name] = max(self.maxima.get(name, value), value)

    def all_reduce(self, world_size: int) -> "MinibatchMetrics":
        """Return the totals over all ranks. Collective."""
        merged = MinibatchMetrics()
        for part in all_gather_metrics(
            {"loss": {"loss": self.loss}, "sums": self.sums, "maxima": self.maxima}, world_size
        ):
            merged.add(part["loss"]["loss"], part["sums"], part["maxima"])
        return merged


# Tokens of a pack on a CPU: longer packs are not faster, and their activations take memory.
_CPU_PACK_TOKENS = 1024


@dataclass(frozen=True)
class RankContext:
    """Position of this process among the ranks, its device, and its token limit.

    Attributes:
        microbatch_tokens: Limit of this rank's tokens of a pack.
        context_group: Ranks that compute the same microbatches, each with its part of the tokens; None: this
            rank computes its microbatches alone.
        activation_offload: Offloads what the backward pass needs; None: it stays on the device.
    """

    rank: int
    world_size: int
    device: torch.device
    microbatch_tokens: int
    context_group: ContextGroup | None = None
    activation_offload: ActivationOffload | None = None

    @property
    def pack_tokens(self) -> int:
        """Token limit that packs are planned for. It affects no result beyond the order of sums."""
        limit = self.microbatch_tokens
        if self.device.type == "cpu":
            limit = min(limit, _CPU_PACK_TOKENS)
        return limit * self._context_size

    @property
    def replicas(self) -> int:
        """Number of context groups, among which microbatches are divided."""
        return self.world_size // self._context_size

    @property
    def replica(self) -> int:
        """Index of this rank's context group: groups are of consecutive ranks."""
        return self.rank // self._context_size

    @property
    def reports(self) -> bool:
        """True for the one rank of a context group whose columns and metrics are counted."""
        return self.context_group is None or self.context_group.index == 0

    @property
    def _context_size(self) -> int:
        return 1 if self.context_group is None else self.context_group.size


def plan_rank_microbatches(
    model: PackedModel, batch: Batch, unit: int, context: RankContext
) -> list[Microbatch]:
    """Plan this rank's microbatches."""
    return plan_microbatches(
        batch,
        unit,
        context.pack_tokens,
        context.replicas,
        shared=model.shares_prompts,
        attention=model.attention_cost,
    )[context.replica]


def pack_inputs(model: PackedModel, part: Batch, context: RankContext) -> PackedTokens:
    """Return this rank's inputs of the pass over a microbatch."""
    return model.pack(part, context.device, context.context_group)


def run_objective(
    model: PackedModel,
    minibatch: Batch,
    objective: Objective,
    context: RankContext,
    cache: ForwardCache | None = None,
    loss_scale: float = 1.0,
) -> MinibatchMetrics:
    """Run the passes of one prepared minibatch.

    Adds the gradient of the loss times `loss_scale` to the parameters when gradients are enabled; the metrics
    are those of the loss itself.

    The objective sees CPU tensors: its inputs are [T], small compared with the model's work.

    Args:
        cache: Passes with the current weights that need not be repeated.
    """
    model.check_batch(minibatch, objective.outputs)
    metrics = MinibatchMetrics()
    done: set[int] = set()
    for sequences, columns in cache.pop_matching(minibatch, objective) if cache is not None else ():
        _backward(columns, minibatch.select(sequences), objective, metrics, loss_scale=loss_scale)
        done.update(sequences)
    if done:
        minibatch = minibatch.select([index for index in range(len(minibatch)) if index not in done])
    plan = plan_rank_microbatches(model, minibatch, objective.unit, context) if len(minibatch) else []
    # The ranks of a context group balance different tokens, and compute the same loss of an objective, which
    # one of them reports.
    reported = MinibatchMetrics()
    with balanced_passes(model, minibatch, objective, context.world_size, loss_scale) as balanced:
        if balanced is not None:
            balanced.count_choices(model, minibatch, plan, context.device, context.context_group)
        for microbatch in plan:
            part = minibatch.select(microbatch.sequences)
            packed = pack_inputs(model, part, context)
            if balanced is not None:
                balanced.before_pass(packed, microbatch.is_counted)
            columns = _forward_for_backward(model, packed, objective.outputs, context)
            if balanced is not None:
                reported.add(*balanced.after_pass())
            _backward(columns, part, objective, metrics, microbatch.is_counted, loss_scale)
    if context.reports:
        reported.add(metrics.loss, metrics.sums, metrics.maxima)
    return reported.all_reduce(context.world_size)


def _forward_for_backward(
    model: PackedModel, packed: PackedTokens, outputs: frozenset[str], context: RankContext
) -> dict[str, Tensor]:
    """Compute the columns of one microbatch and save what a backward pass needs, offloaded where the context
    says so.
    """
    offload = context.activation_offload
    with nullcontext() if offload is None else offload.during_forward(model):
        columns: dict[str, Tensor] = model(packed, outputs)
    return columns


def _backward(
    columns: dict[str, Tensor],
    part: Batch,
    objective: Objective,
    metrics: MinibatchMetrics,
    counted: bool = True,
    loss_scale: float = 1.0,
) -> None:
    """Run the backward pass of one microbatch."""
    terms = objective.loss(_model_outputs(columns), part)
    # An idle rank runs the same collectives as the other ranks, with weight zero.
    loss = terms.loss if counted else terms.loss * 0.0
    if torch.is_grad_enabled():
        (loss if loss_scale == 1.0 else loss * loss_scale).backward()  # type: ignore[no-untyped-call]
    if counted:
        metrics.add(float(loss.detach()), _to_floats(terms.sums), _to_floats(terms.maxima))


@torch.no_grad()
def run_forward(
    model: PackedModel, batch: Batch, outputs: frozenset[str], context: RankContext
) -> dict[str, Tensor]:
    """Return the requested columns, float32 [T] or [T, K] on the CPU, the same on all ranks."""
    return _gather_columns(
        model,
        batch,
        outputs,
        context,
        lambda part: model(pack_inputs(model, part, context), outputs),
    )


def run_forward_and_cache(
    model: PackedModel,
    batch: Batch,
    outputs: frozenset[str],
    context: RankContext,
    cache: ForwardCache,
    objective: Objective,
) -> dict[str, Tensor]:
    """Compute `run_forward` and cache its passes, with all columns that the objective reads."""

    def compute(part: Batch) -> dict[str, Tensor]:
        packed = pack_inputs(model, part, context)
        columns = _forward_for_backward(model, packed, outputs | objective.outputs, context)
        cache.add(part, columns)
        return {name: columns[name].detach() for name in outputs}

    return _gather_columns(model, batch, outputs, context, compute)


def _gather_columns(
    model: PackedModel,
    batch: Batch,
    outputs: frozenset[str],
    context: RankContext,
    compute: Callable[[Batch], dict[str, Tensor]],
) -> dict[str, Tensor]:
    """Compute each microbatch's columns and write them to their positions in the batch."""
    model.check_batch(batch, outputs)
    columns: dict[str, Tensor] = {}
    starts = batch.cu_seqlens[:-1].long()
    for microbatch in plan_rank_microbatches(model, batch, 1, context):
        part = batch.select(microbatch.sequences)
        outputs_of_part = compute(part)
        for name, column in outputs_of_part.items():
            columns.setdefault(name, torch.zeros(len(batch.tokens), *column.shape[1:]))
        if microbatch.is_counted and context.reports:
            origin = starts[torch.tensor(microbatch.sequences)][part.sequence_of_token] + part.positions
            for name, column in outputs_of_part.items():
                columns[name][origin] = column.float().cpu()
    return {name: all_reduce_sum(column, context.world_size) for name, column in columns.items()}


def average_metrics(steps: Sequence[tuple[MinibatchMetrics, float | None, float]]) -> dict[str, float]:
    """Return the metrics of a TrainStep from the metrics, gradient norms and learning rates of its optimiser
    steps.

    A skipped optimiser step has no gradient norm (None).
    """
    metrics: dict[str, float] = {}
    norms = [norm for _, norm, _ in steps if norm is not None]
    for step, _, _ in steps:
        for name, value in {**step.sums, "loss": step.loss}.items():
            metrics[name] = metrics.get(name, 0.0) + value / len(steps)
    for norm in norms:
        metrics["gradient_norm"] = metrics.get("gradient_norm", 0.0) + norm / len(norms)
    for name in {name for step, _, _ in steps for name in step.maxima}:
        metrics[name] = max(step.maxima[name] for step, _, _ in steps if name in step.maxima)
    return {**metrics, "learning_rate": steps[-1][2]}


def _model_outputs(columns: dict[str, Tensor]) -> ModelOutputs:
    moved: dict[str, Any] = {name: column.cpu() for name, column in columns.items()}
    return ModelOutputs(**moved)


def _to_floats(tensors: dict[str, Tensor]) -> dict[str, float]:
    return {name: float(tensor.detach()) for name, tensor in tensors.items()}
