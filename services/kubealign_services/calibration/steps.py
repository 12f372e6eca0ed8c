"""How long trainer and critic take for a step."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from kubealign_services.algorithms.contract import Algorithm, Objective
from kubealign_services.batch.companions import without_companions
from kubealign_services.batch.packed import Batch
from kubealign_services.calibration.budget import Budget, timed
from kubealign_services.training.contract import TrainingBackend, UpdatePlan

#: Times that a batch is trained on.
_FEWEST, _MOST = 2, 4
_Seconds: TypeAlias = tuple[float, float, float]
_LOGPROBS, _VALUES = frozenset({"logprobs"}), frozenset({"values"})


@dataclass(frozen=True)
class Trained:
    """A model that is measured."""

    backend: TrainingBackend
    objective: Objective
    epochs: int
    minibatch_sequences: int | None

    def train(self, batch: Batch) -> float:
        """Seconds of one TrainStep."""
        plan = UpdatePlan(self.epochs, self.minibatch_sequences or len(batch), seed=0)
        return timed(lambda: self.backend.train_step(batch.select(range(len(batch))), self.objective, plan))


@dataclass
class StepSeconds:
    """train: of the slower of trainer and critic, which go on side by side. values, logprobs: of the critic,
    and of the trainer, before it; 0 where there are none."""

    train: float = 0.0
    values: float = 0.0
    logprobs: float = 0.0
    assumed: list[str] = field(default_factory=list)


def measure_step(
    policy: Trained,
    critic: Trained | None,
    algorithm: Algorithm,
    make: Callable[[int], Batch],
    groups: int,
    budget: Budget,
) -> StepSeconds:
    """make: a batch of so many groups, like the step's. The whole step is measured where the budget lets it;
    else a part of it, and what the rest takes is told from two parts by their tokens."""
    _once(policy, critic, algorithm, make(1))  # warms up

    def part(count: int) -> tuple[int, _Seconds]:
        """(tokens, the least of a few): what else the machine does can only add to it."""
        found: list[_Seconds] = []
        while len(found) < _FEWEST or (len(found) < _MOST and budget.left > sum(found[-1])):
            batch = make(count)
            found.append(_once(policy, critic, algorithm, batch))
        train, values, logprobs = (min(each) for each in zip(*found, strict=True))
        return len(batch.tokens), (train, values, logprobs)

    count = max(1, groups // 8)
    parts = [part(count)]
    a_group = sum(parts[0][1]) / count
    more = min(groups, int(budget.left / (_FEWEST * max(a_group, 1e-9))))
    if more > count:
        count = more
        parts.append(part(count))
    if count == groups:
        return StepSeconds(*parts[-1][1])
    tokens = len(make(groups).tokens)
    train, values, logprobs = (
        _told([(n, seconds[which]) for n, seconds in parts], tokens) for which in range(3)
    )
    text = f"a step of {groups} prompts takes what one of {count} tells of it"
    return StepSeconds(train, values, logprobs, [text])


def _once(policy: Trained, critic: Trained | None, algorithm: Algorithm, batch: Batch) -> _Seconds:
    """(TrainSteps, values, log-probabilities) of this batch."""
    values = logprobs = 0.0
    if critic is not None:
        begun = time.perf_counter()
        batch.token_columns["values"] = critic.backend.forward(batch, _VALUES)["values"]
        values = time.perf_counter() - begun
    if algorithm.needs_old_logprobs:
        begun = time.perf_counter()
        batch.token_columns["old_logprobs"] = policy.backend.forward(batch, _LOGPROBS)["logprobs"]
        logprobs = time.perf_counter() - begun
    if algorithm.needs_reference:
        # At the start the policy is its own reference.
        told = batch.token_columns.get("old_logprobs", batch.token("behaviour_logprobs"))
        batch.token_columns["reference_logprobs"] = told.clone()
    algorithm.advantages(batch, {})
    learned = without_companions(batch)
    train = policy.train(learned)
    return max(train, 0.0 if critic is None else critic.train(learned)), values, logprobs


def _told(parts: list[tuple[int, float]], tokens: int) -> float:
    """Seconds at so many tokens, on the line through the last two parts."""
    last, seconds = parts[-1]
    if len(parts) == 1 or last == parts[-2][0]:
        return seconds * tokens / last
    first, before = parts[-2]
    return seconds + (tokens - last) * max(0.0, (seconds - before) / (last - first))
