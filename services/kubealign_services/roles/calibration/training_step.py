"""Measures trainer and critic for a step."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from kubealign_services.algorithms.contract import Algorithm, Objective, outputs_before_step
from kubealign_services.batch.auxiliary_sequences import drop_auxiliary
from kubealign_services.batch.packed import Batch
from kubealign_services.roles.calibration.time_budget import TimeBudget, measure_seconds
from kubealign_services.training.contract import TrainingBackend, UpdatePlan

#: Smallest and largest number of repeats of a measurement.
_MIN_REPEATS, _MAX_REPEATS = 2, 4
_Seconds: TypeAlias = tuple[float, float, float]
_VALUES = frozenset({"values"})


@dataclass(frozen=True)
class MeasuredModel:
    """A trained model under measurement."""

    backend: TrainingBackend
    objective: Objective
    epochs: int
    minibatch_sequences: int | None

    def train(self, batch: Batch) -> float:
        """Return the seconds of one TrainStep."""
        plan = UpdatePlan(self.epochs, self.minibatch_sequences or len(batch), seed=0)
        return measure_seconds(
            lambda: self.backend.train_step(batch.select(range(len(batch))), self.objective, plan)
        )


@dataclass
class StepTiming:
    """Seconds of a step.

    train: of the slower of trainer and critic, which run in parallel. values, logprobs: of the critic's
    values and the trainer's log-probabilities, before training; 0 where there are none.
    """

    train: float = 0.0
    values: float = 0.0
    logprobs: float = 0.0
    assumptions: list[str] = field(default_factory=list)


def measure_step(
    policy: MeasuredModel,
    critic: MeasuredModel | None,
    algorithm: Algorithm,
    make: Callable[[int], Batch],
    groups: int,
    budget: TimeBudget,
) -> StepTiming:
    """Measure the whole step where the budget allows it; otherwise measure parts and extrapolate by tokens.

    Args:
        make: Builds a batch of a number of groups, like the step's.
    """
    _measure_batch(policy, critic, algorithm, make(1))  # warms up

    def part(count: int) -> tuple[int, _Seconds]:
        """Return (tokens, smallest times of a few repeats): other load on the machine can only increase the
        time.
        """
        measured: list[_Seconds] = []
        while len(measured) < _MIN_REPEATS or (
            len(measured) < _MAX_REPEATS and budget.seconds_left > sum(measured[-1])
        ):
            batch = make(count)
            measured.append(_measure_batch(policy, critic, algorithm, batch))
        train, values, logprobs = (min(each) for each in zip(*measured, strict=True))
        return len(batch.tokens), (train, values, logprobs)

    count = max(1, groups // 8)
    parts = [part(count)]
    a_group = sum(parts[0][1]) / count
    more = min(groups, int(budget.seconds_left / (_MIN_REPEATS * max(a_group, 1e-9))))
    if more > count:
        count = more
        parts.append(part(count))
    if count == groups:
        return StepTiming(*parts[-1][1])
    tokens = len(make(groups).tokens)
    train, values, logprobs = (
        _extrapolate([(n, seconds[which]) for n, seconds in parts], tokens) for which in range(3)
    )
    text = f"a step of {groups} prompts is extrapolated from a step of {count}"
    return StepTiming(train, values, logprobs, [text])


def _measure_batch(
    policy: MeasuredModel, critic: MeasuredModel | None, algorithm: Algorithm, batch: Batch
) -> _Seconds:
    """Return seconds of (TrainSteps, values, log-probabilities) for this batch."""
    values = logprobs = 0.0
    if critic is not None:
        started = time.perf_counter()
        batch.token_columns["values"] = critic.backend.forward(batch, _VALUES)["values"]
        values = time.perf_counter() - started
    outputs = outputs_before_step(algorithm)
    if outputs:
        started = time.perf_counter()
        columns = policy.backend.forward(batch, frozenset(outputs))
        batch.token_columns |= {f"old_{name}": column for name, column in columns.items()}
        logprobs = time.perf_counter() - started
    if algorithm.needs_reference:
        # At the start the policy is its own reference.
        logprobs_at_start = batch.token_columns.get("old_logprobs", batch.token("behaviour_logprobs"))
        batch.token_columns["reference_logprobs"] = logprobs_at_start.clone()
    algorithm.advantages(batch, {})
    trainable = drop_auxiliary(batch)
    train = policy.train(trainable)
    return max(train, 0.0 if critic is None else critic.train(trainable)), values, logprobs


def _extrapolate(parts: list[tuple[int, float]], tokens: int) -> float:
    """Extrapolate the seconds to a number of tokens on the line through the last two measurements."""
    last, seconds = parts[-1]
    if len(parts) == 1 or last == parts[-2][0]:
        return seconds * tokens / last
    first, before = parts[-2]
    return seconds + (tokens - last) * max(0.0, (seconds - before) / (last - first))
