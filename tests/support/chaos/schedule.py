"""A seeded schedule of faults: the seed reproduces it."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from support.chaos.job import PROCESSES


class FaultKind(StrEnum):
    KILL = "kill"
    STOP = "stop"
    WIPE_BUS = "wipe-bus"


@dataclass(frozen=True)
class Fault:
    """One fault.

    Args:
        target: Name of the process.
        seconds: How long a stopped process stays so; 0 for other kinds.
    """

    kind: FaultKind
    target: str
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.kind} {self.target}" + (f" for {self.seconds:.0f} s" if self.seconds else "")


_WEIGHTS = {FaultKind.KILL: 5, FaultKind.STOP: 4, FaultKind.WIPE_BUS: 1}


def make_schedule(
    seed: int, count: int, longest_stop: float, targets: Sequence[str] = PROCESSES
) -> list[Fault]:
    """Return `count` faults. Stops take between 1 s and `longest_stop` seconds, short ones more often."""
    generator = random.Random(seed)
    return [_make_fault(generator, longest_stop, targets) for _ in range(count)]


def _make_fault(generator: random.Random, longest_stop: float, targets: Sequence[str]) -> Fault:
    (kind,) = generator.choices(list(_WEIGHTS), list(_WEIGHTS.values()))
    target = "nats" if kind is FaultKind.WIPE_BUS else generator.choice(targets)
    seconds = longest_stop ** generator.random() if kind is FaultKind.STOP else 0.0
    return Fault(kind, target, seconds)
