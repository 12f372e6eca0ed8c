"""Sizing rule: step time with 1, 2, ... rollout workers, and the recommended number of them. Pure.

A synchronous step is sequential: generate, score what generation has not hidden, train, refit. An
asynchronous step takes as long as the slowest side: the trainer, the scorer, or the workers with the refit
that interrupts them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kubealign.bench.engine_speed import EngineSpeed
from kubealign.bench.generation_time import StepWorkload, generation_times, steady_state_seconds

#: Maximum share of a step that an asynchronous trainer may wait.
MAX_IDLE_SHARE = 0.1
#: Minimum share of a synchronous step that one more worker must save.
MIN_GAIN_SHARE = 0.05
_LONGEST_RESPONSE_LIMIT = "The longest responses limit it, which more workers do not shorten."
_DRAIN_LIMIT = "Workers drain at every refit: with rollout.refit.inFlight Continue they would not."


@dataclass(frozen=True)
class StepCosts:
    """Seconds of a step.

    train: optimiser steps of trainer and critic, which run in parallel. before: work of both before the
    optimiser steps (values, log-probabilities). score: measured time from the last response to its last
    score; or scoring: one scorer's time for all responses, which generation partly hides. refit: until the
    workers have the new weights. rest: the driver's own.
    """

    train: float
    before: float = 0.0
    score: float = 0.0
    scoring: float = 0.0
    refit: float = 0.0
    rest: float = 0.0

    @property
    def busy(self) -> float:
        """Seconds in which the trainer is busy."""
        return self.train + self.before


@dataclass(frozen=True)
class SizedStep:
    """A step with a given number of workers.

    generate: seconds of the workers. idle: share of the step in which the trainer waits.
    """

    workers: int
    generate: float
    step: float
    idle: float


@dataclass(frozen=True)
class Sizing:
    """Result of a sizing.

    rows: with 1, 2, ... workers. workers: recommended number; sentence: reason. enough: True if more
    workers would bring little; False: the rows end before that.
    """

    rows: Sequence[SizedStep]
    workers: int
    enough: bool
    sentence: str

    @property
    def chosen(self) -> SizedStep:
        return self.rows[self.workers - 1]


def recommend_workers(
    work: StepWorkload, speed: EngineSpeed, costs: StepCosts, staleness: int, flows: bool, most: int
) -> Sizing:
    """Recommend a number of rollout workers.

    Args:
        staleness: The algorithm's maxStaleness; 0: a synchronous job.
        flows: True if responses in flight survive a refit (inFlight Interrupt or Continue); else workers
            drain at each refit.
        most: Maximum number of workers to consider.
    """
    rows: list[SizedStep] = []
    for workers, drained in enumerate(generation_times(work, speed, most, costs.scoring), 1):
        generate = drained.seconds
        if staleness and flows:
            generate = steady_state_seconds(work, speed, workers, staleness, generate)
        if staleness:
            step = max(costs.busy + costs.rest, generate + costs.refit, costs.scoring)
        else:
            step = generate + drained.scoring_tail + costs.score + costs.busy + costs.refit + costs.rest
        # More workers are never slower: additional ones may idle.
        if rows and step > rows[-1].step:
            generate, step = rows[-1].generate, rows[-1].step
        rows.append(SizedStep(workers, generate, step, 1 - costs.busy / step))
    balanced = next((row.workers for row in rows if row.idle < MAX_IDLE_SHARE), None) if staleness else None
    chosen = balanced or _cost_effective_workers(rows)
    enough = balanced is not None or chosen < len(rows)
    why = ""
    if staleness and balanced is None:
        why = f" {_LONGEST_RESPONSE_LIMIT if flows else _DRAIN_LIMIT}"
    return Sizing(rows, chosen, enough, _sentence(rows, chosen, balanced is not None, enough) + why)


def _cost_effective_workers(rows: Sequence[SizedStep]) -> int:
    """Return the fewest workers after which no larger number saves GAIN of the step for each additional
    worker.

    All larger numbers are compared, not only the next one: prompts that do not divide evenly cause
    plateaus.
    """
    for row in rows:
        later = rows[row.workers :]
        if all(
            row.step - more.step < MIN_GAIN_SHARE * (more.workers - row.workers) * row.step for more in later
        ):
            return row.workers
    return len(rows)


def _sentence(rows: Sequence[SizedStep], chosen: int, balanced: bool, enough: bool) -> str:
    row = rows[chosen - 1]
    step_text = f"a step takes {_seconds(row.step)} and the trainer waits {100 * row.idle:.0f} % of it"
    workers_text = f"{chosen} rollout worker{'s' if chosen > 1 else ''}"
    if not enough:
        return (
            f"At least {workers_text}, the maximum that was considered: {step_text}, "
            "and more would still help."
        )
    if balanced:
        before = ""
        if chosen > 1:
            fewer = rows[chosen - 2]
            before = f"; with one fewer it would wait {100 * fewer.idle:.0f} %"
        return f"{workers_text} keep{'' if chosen > 1 else 's'} the trainer busy: {step_text}{before}."
    more = ""
    if chosen < len(rows):
        saved = 1 - rows[chosen].step / row.step
        more = f"; one more would make it {100 * saved:.0f} % shorter"
    return f"{workers_text}: {step_text}{more}."


def _seconds(value: float) -> str:
    return f"{value:.2g} s" if value < 10 else f"{value:,.0f} s"
