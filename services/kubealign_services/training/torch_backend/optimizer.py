"""Gradient norm and clipping, optimiser steps, and learning rate schedules."""

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from kubealign.spec.sections.training import (
    CosineSchedule,
    LearningRateSchedule,
    LinearSchedule,
    Optimizer,
)


def gradient_norm(parameters: Iterable[Tensor]) -> float:
    """Return the global L2 norm of the gradients, over all shards. Collective when sharded."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if not gradients:
        return 0.0
    norm = nn.utils.get_total_norm(gradients)
    return float(norm.full_tensor() if isinstance(norm, DTensor) else norm)


def clip_gradients(parameters: Iterable[Tensor], norm: float, bound: float | None) -> None:
    """Scale the gradients so that their global norm, passed as `norm`, is at most `bound`."""
    if bound is None or norm <= bound:
        return
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.grad.mul_(bound / norm)


def step_optimizer(optimizer: torch.optim.Optimizer, spec: Optimizer, step: int, total: int) -> float:
    """Run one optimiser step, number `step` from 0 of `total`. Returns its learning rate.

    Raises what `set_learning_rate` raises.
    """
    rate = set_learning_rate(optimizer, spec, step, total)
    optimizer.step()
    return rate


def set_learning_rate(optimizer: torch.optim.Optimizer, spec: Optimizer, step: int, total: int) -> float:
    """Set the learning rate of optimiser step `step`, from 0, of `total`. Returns that of AdamW.

    A group with another `peak_rate` follows the same schedule.

    Raises:
        ValueError: The optimiser's section has no learning rate.
    """
    peak = spec.adam_w.learning_rate
    if peak is None:
        raise ValueError("adamW.learningRate is null: train with the spec's effective_trainer")
    rate = learning_rate(spec.schedule, peak, step, total)
    for group in optimizer.param_groups:
        group_peak = group.get("peak_rate")
        group["lr"] = rate if group_peak is None else learning_rate(spec.schedule, group_peak, step, total)
    return rate


def learning_rate(schedule: LearningRateSchedule, peak: float, step: int, total: int) -> float:
    """Return the learning rate of optimiser step `step` (from 0) of `total`.

    Warm-up rises linearly and reaches the peak at its last step; the decay reaches the floor at the job's
    last step, or before its last steps at the floor. Steps beyond `total` stay at the floor.
    """
    kind = schedule.constant or schedule.linear or schedule.cosine
    warmup = 0 if kind is None else kind.warmup_steps or round(kind.warmup_fraction * total)
    if step < warmup:
        return peak * (step + 1) / warmup
    match kind:
        case LinearSchedule(decay_fraction=fraction, floor=floor):
            remaining = 1 - _decay_progress(step, total, round(fraction * (total - warmup)))
        case CosineSchedule(decay_fraction=fraction, floor=floor, floor_steps=floor_steps):
            end = max(warmup, total - floor_steps)
            progress = _decay_progress(step, end, round(fraction * (end - warmup)))
            remaining = (1 + math.cos(math.pi * (1.0 if step >= end else progress))) / 2
        case _:
            return peak
    return peak * (floor + (1 - floor) * remaining)


def _decay_progress(step: int, end: int, decay: int) -> float:
    """Return the completed fraction of a decay over the `decay` steps before step `end`: 0 before the decay,
    1 at its last step.
    """
    if decay <= 0:
        return 0.0
    return min(1.0, max(0.0, (step + 1 - (end - decay)) / decay))
