"""Learning rate schedules over the optimiser steps of a job."""

import math

from kubealign.spec.sections.training import CosineSchedule, LearningRateSchedule, LinearSchedule


def learning_rate(schedule: LearningRateSchedule, peak: float, step: int, total: int) -> float:
    """Return the learning rate of optimiser step `step` (from 0) of `total`.

    Warm-up rises linearly and reaches the peak at its last step; the decay reaches the floor at the job's
    last step. Steps
    beyond `total` stay at the floor.
    """
    kind = schedule.constant or schedule.linear or schedule.cosine
    warmup = kind.warmup_steps if kind is not None else 0
    if step < warmup:
        return peak * (step + 1) / warmup
    match kind:
        case LinearSchedule(decay_fraction=fraction, floor=floor):
            remaining = 1 - _decay_progress(step, total, round(fraction * (total - warmup)))
        case CosineSchedule(floor=floor):
            remaining = (1 + math.cos(math.pi * _decay_progress(step, total, total - warmup))) / 2
        case _:
            return peak
    return peak * (floor + (1 - floor) * remaining)


def _decay_progress(step: int, total: int, decay: int) -> float:
    """Return the completed fraction of a decay over the last `decay` steps: 0 before it, 1 at the last step."""
    if decay <= 0:
        return 0.0
    return min(1.0, max(0.0, (step + 1 - (total - decay)) / decay))
