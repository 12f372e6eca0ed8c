"""Forward and backward passes over planned micro-batches, and what they add up to over all ranks."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from kubealign_services.algorithms.contract import ModelOutputs, Objective
from kubealign_services.batch.packed import Batch
from kubealign_services.training.torch_backend.collectives import all_figures, summed
from kubealign_services.training.torch_backend.kept_passes import KeptPasses
from kubealign_services.training.torch_backend.microbatches import Microbatch, plan_microbatches
from kubealign_services.training.torch_backend.packed_model import PackedModel, PackedTokens


@dataclass
class Figures:
    """A minibatch's loss and metrics: of this rank while it runs, of all ranks after `over_all_ranks`."""

    loss: float = 0.0
    sums: dict[str, float] = field(default_factory=dict)
    maxima: dict[str, float] = field(default_factory=dict)

    def add(self, loss: float, sums: dict[str, float], maxima: dict[str, float]) -> None:
        self.loss += loss
        for name, value in sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
        for name, value in maxima.items():
            self.maxima[name] = max(self.maxima.get(name, value), value)

    def over_all_ranks(self, world_size: int) -> "Figures":
        """Collective."""
        merged = Figures()
        for part in all_figures(
            {"loss": {"loss": self.loss}, "sums": self.sums, "maxima": self.maxima}, world_size
        ):
            merged.add(part["loss"]["loss"], part["sums"], part["maxima"])
        return merged


# Tokens of a pack on a CPU: more are no quicker there, and their activations lie in memory.
_CPU_TOKENS = 1024


@dataclass(frozen=True)
class Place:
    """Where this process stands: its rank, how many there are, its device, and the most tokens of a pack."""

    rank: int
    world_size: int
    device: torch.device
    microbatch_tokens: int

    @property
    def pack_tokens(self) -> int:
        """What packs are planned for. It changes no number but for the order of sums."""
        most = self.microbatch_tokens
        return min(most, _CPU_TOKENS) if self.device.type == "cpu" else most


def planned(model: PackedModel, batch: Batch, unit: int, place: Place) -> list[Microbatch]:
    """This rank's micro-batches."""
    return plan_microbatches(
        batch,
        unit,
        place.pack_tokens,
        place.world_size,
        shared=model.shares_prompts,
        attention=model.attention_cost,
    )[place.rank]


def run_objective(
    model: PackedModel, minibatch: Batch, objective: Objective, place: Place, kept: KeptPasses | None = None
) -> Figures:
    """One minibatch, prepared already. Adds its gradient to the parameters' where gradients are enabled.
    kept: passes that need not be made again, of the weights as they are.

    The objective sees CPU tensors: what it reads is [T], small beside the model's work.
    """
    model.check(minibatch, objective.outputs)
    figures = Figures()
    done: set[int] = set()
    for sequences, columns in kept.take(minibatch, objective) if kept is not None else ():
        _learn(columns, minibatch.select(sequences), objective, figures)
        done.update(sequences)
    if done:
        minibatch = minibatch.select([index for index in range(len(minibatch)) if index not in done])
    for microbatch in planned(model, minibatch, objective.unit, place) if len(minibatch) else ():
        part = minibatch.select(microbatch.sequences)
        columns = model(PackedTokens.of(part, place.device, model.shares_prompts), objective.outputs)
        _learn(columns, part, objective, figures, microbatch.counted)
    return figures.over_all_ranks(place.world_size)


def _learn(
    columns: dict[str, Tensor], part: Batch, objective: Objective, figures: Figures, counted: bool = True
) -> None:
    """The backward pass of one micro-batch."""
    terms = objective.loss(_outputs(columns), part)
    # An idle rank runs the same collectives as the others, with no weight.
    loss = terms.loss if counted else terms.loss * 0.0
    if torch.is_grad_enabled():
        loss.backward()  # type: ignore[no-untyped-call]
    if counted:
        figures.add(float(loss.detach()), _numbers(terms.sums), _numbers(terms.maxima))


@torch.no_grad()
def run_forward(model: PackedModel, batch: Batch, outputs: frozenset[str], place: Place) -> dict[str, Tensor]:
    """The columns asked for, float32 [T] or [T, K] on the CPU, the same on all ranks."""
    return _gathered(
        model,
        batch,
        outputs,
        place,
        lambda part: model(PackedTokens.of(part, place.device, model.shares_prompts), outputs),
    )


def run_forward_and_keep(
    model: PackedModel,
    batch: Batch,
    outputs: frozenset[str],
    place: Place,
    kept: KeptPasses,
    objective: Objective,
) -> dict[str, Tensor]:
    """`run_forward`, whose passes are kept, with all that the objective reads of them."""

    def compute(part: Batch) -> dict[str, Tensor]:
        packed = PackedTokens.of(part, place.device, model.shares_prompts)
        columns = model(packed, outputs | objective.outputs)
        kept.add(part, columns)
        return {name: columns[name].detach() for name in outputs}

    return _gathered(model, batch, outputs, place, compute)


def _gathered(
    model: PackedModel,
    batch: Batch,
    outputs: frozenset[str],
    place: Place,
    compute: Callable[[Batch], dict[str, Tensor]],
) -> dict[str, Tensor]:
    """What `compute` makes of each micro-batch, where it belongs in the batch."""
    model.check(batch, outputs)
    columns: dict[str, Tensor] = {}
    starts = batch.cu_seqlens[:-1].long()
    for microbatch in planned(model, batch, 1, place):
        part = batch.select(microbatch.sequences)
        found = compute(part)
        for name, column in found.items():
            columns.setdefault(name, torch.zeros(len(batch.tokens), *column.shape[1:]))
        if microbatch.counted:
            origin = starts[torch.tensor(microbatch.sequences)][part.sequence_of_token] + part.positions
            for name, column in found.items():
                columns[name][origin] = column.float().cpu()
    return {name: summed(column, place.world_size) for name, column in columns.items()}


def averaged(steps: list[tuple[Figures, float, float]]) -> dict[str, float]:
    """Metrics of a TrainStep from its optimiser steps' figures, gradient norms and learning rates."""
    metrics: dict[str, float] = {}
    for figures, norm, _ in steps:
        for name, value in {**figures.sums, "loss": figures.loss, "gradient_norm": norm}.items():
            metrics[name] = metrics.get(name, 0.0) + value / len(steps)
    for name in {name for figures, _, _ in steps for name in figures.maxima}:
        metrics[name] = max(figures.maxima[name] for figures, _, _ in steps if name in figures.maxima)
    return {**metrics, "learning_rate": steps[-1][2]}


def _outputs(columns: dict[str, Tensor]) -> ModelOutputs:
    moved: dict[str, Any] = {name: column.cpu() for name, column in columns.items()}
    return ModelOutputs(**moved)


def _numbers(tensors: dict[str, Tensor]) -> dict[str, float]:
    return {name: float(tensor.detach()) for name, tensor in tensors.items()}
