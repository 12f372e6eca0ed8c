"""The sizing rule: what a step takes with 1, 2, ... rollout workers, and how many of them to have. Pure.

A synchronous step is one after the other: generate, score what generation has not hidden, train, refit. An
asynchronous one takes as long as the slowest side: the trainer's work, the scorer's, or the workers' with the
refit that interrupts it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kubealign.bench.engine_speed import EngineSpeed
from kubealign.bench.generation import Workload, flowing_seconds, generation

#: Share of a step that an asynchronous trainer may wait.
IDLE = 0.1
#: Share of a synchronous step that one more worker must save.
GAIN = 0.05
_HELD_UP = "The longest responses hold it up, which more workers do not shorten."
_RUN_DRY = "Workers run dry at every refit: with rollout.refit.inFlight Continue they would not."


@dataclass(frozen=True)
class StepCosts:
    """Seconds of a step. train: the optimiser's steps of trainer and critic, which go on side by side.
    before: of both, before it (values, log-probabilities). score: from the last response to its last score,
    as it was seen; or scoring: of one scorer for all responses, of which generation hides what it can. refit:
    until the workers have the new weights. rest: the driver's own."""

    train: float
    before: float = 0.0
    score: float = 0.0
    scoring: float = 0.0
    refit: float = 0.0
    rest: float = 0.0

    @property
    def busy(self) -> float:
        """Of the trainer."""
        return self.train + self.before


@dataclass(frozen=True)
class Sized:
    """A step with so many workers. generate: seconds of the workers. idle: share of the step that the trainer
    waits."""

    workers: int
    generate: float
    step: float
    idle: float


@dataclass(frozen=True)
class Sizing:
    """rows: with 1, 2, ... workers. workers: how many to have; sentence: why. enough: whether more would
    bring little; False: the rows end before that."""

    rows: Sequence[Sized]
    workers: int
    enough: bool
    sentence: str

    @property
    def chosen(self) -> Sized:
        return self.rows[self.workers - 1]


def size(
    work: Workload, speed: EngineSpeed, costs: StepCosts, staleness: int, flows: bool, most: int
) -> Sizing:
    """staleness: the algorithm's maxStaleness; 0: a synchronous job. flows: whether responses in the making
    outlive a refit (inFlight Interrupt or Continue); else workers run dry at each. most: workers that are
    looked at."""
    rows: list[Sized] = []
    for workers, drained in enumerate(generation(work, speed, most, costs.scoring), 1):
        generate = drained.seconds
        if staleness and flows:
            generate = flowing_seconds(work, speed, workers, staleness, generate)
        if staleness:
            step = max(costs.busy + costs.rest, generate + costs.refit, costs.scoring)
        else:
            step = generate + drained.unscored + costs.score + costs.busy + costs.refit + costs.rest
        # More workers may be left idle: what fewer can do, they can.
        if rows and step > rows[-1].step:
            generate, step = rows[-1].generate, rows[-1].step
        rows.append(Sized(workers, generate, step, 1 - costs.busy / step))
    balanced = next((row.workers for row in rows if row.idle < IDLE), None) if staleness else None
    chosen = balanced or _worthwhile(rows)
    enough = balanced is not None or chosen < len(rows)
    why = ""
    if staleness and balanced is None:
        why = f" {_HELD_UP if flows else _RUN_DRY}"
    return Sizing(rows, chosen, enough, _sentence(rows, chosen, balanced is not None, enough) + why)


def _worthwhile(rows: Sequence[Sized]) -> int:
    """The fewest workers to whom no number more brings GAIN of the step for each. Not only one more: prompts
    that do not divide evenly make steps in the figures."""
    for row in rows:
        later = rows[row.workers :]
        if all(row.step - more.step < GAIN * (more.workers - row.workers) * row.step for more in later):
            return row.workers
    return len(rows)


def _sentence(rows: Sequence[Sized], chosen: int, balanced: bool, enough: bool) -> str:
    row = rows[chosen - 1]
    held = f"a step takes {_seconds(row.step)} and the trainer waits {100 * row.idle:.0f} % of it"
    who = f"{chosen} rollout worker{'s' if chosen > 1 else ''}"
    if not enough:
        return f"At least {who}, the most that were looked at: {held}, and more would still bring something."
    if balanced:
        before = ""
        if chosen > 1:
            less = rows[chosen - 2]
            before = f"; with one fewer it would wait {100 * less.idle:.0f} %"
        return f"{who} keep{'' if chosen > 1 else 's'} the trainer busy: {held}{before}."
    more = ""
    if chosen < len(rows):
        saved = 1 - rows[chosen].step / row.step
        more = f"; one more would make it {100 * saved:.0f} % shorter"
    return f"{who}: {held}{more}."


def _seconds(value: float) -> str:
    return f"{value:.2g} s" if value < 10 else f"{value:,.0f} s"
