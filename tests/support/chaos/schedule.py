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
    DELAY = "delay"
    CUT = "cut"
    HALF_OPEN = "half-open"
    #: Only in a run whose folder is a small disk.
    FILL_DISK = "fill-disk"
    #: Only in a run whose processes have loaded libfaketime.
    SET_CLOCK = "set-clock"


@dataclass(frozen=True)
class Fault:
    """One fault.

    Args:
        target: Name of the process.
        seconds: How long a process is stopped, or its network or clock is disturbed; 0 for other kinds.
        ahead: Seconds by which the clock is set ahead; negative: back.
    """

    kind: FaultKind
    target: str
    seconds: float = 0.0
    ahead: float = 0.0

    def __str__(self) -> str:
        clock = f" by {self.ahead:+.0f} s" if self.ahead else ""
        return f"{self.kind} {self.target}{clock}" + (f" for {self.seconds:.0f} s" if self.seconds else "")


#: Kinds that disturb the connections of a process.
NETWORK_KINDS = (FaultKind.DELAY, FaultKind.CUT, FaultKind.HALF_OPEN)
_WEIGHTS = {
    FaultKind.KILL: 6,
    FaultKind.STOP: 6,
    FaultKind.WIPE_BUS: 2,
    **dict.fromkeys(NETWORK_KINDS, 2),
}
_SERVERS = ("nats", "redis")
#: Seconds for which the disk stays full.
_FULL_SECONDS = 10.0
#: Seconds for which a clock stays wrong, and the largest error.
_CLOCK_SECONDS = 15.0
_LARGEST_ERROR_SECONDS = 3600.0


def make_schedule(
    seed: int,
    count: int,
    longest_fault: float,
    targets: Sequence[str] = PROCESSES,
    *,
    with_small_disk: bool = False,
    with_clocks: bool = False,
) -> list[Fault]:
    """Return `count` faults, which take between 1 s and `longest_fault` seconds, short times more often.

    Args:
        with_small_disk: One of the faults fills the disk of the run.
        with_clocks: One of the faults sets the clock of a process.
    """
    generator = random.Random(seed)
    faults = [_make_fault(generator, longest_fault, targets) for _ in range(count)]
    if with_small_disk:
        faults[generator.randrange(count)] = Fault(FaultKind.FILL_DISK, "disk", _FULL_SECONDS)
    if with_clocks:
        # NATS is a static program, which libfaketime does not affect.
        target = generator.choice([name for name in targets if name != "nats"])
        ahead = generator.uniform(-_LARGEST_ERROR_SECONDS, _LARGEST_ERROR_SECONDS)
        free = [index for index, fault in enumerate(faults) if fault.kind is not FaultKind.FILL_DISK]
        faults[generator.choice(free)] = Fault(FaultKind.SET_CLOCK, target, _CLOCK_SECONDS, ahead)
    return faults


def _make_fault(generator: random.Random, longest_fault: float, targets: Sequence[str]) -> Fault:
    (kind,) = generator.choices(list(_WEIGHTS), list(_WEIGHTS.values()))
    if kind is FaultKind.WIPE_BUS:
        return Fault(kind, "nats")
    if kind in NETWORK_KINDS:
        # The servers are at the other end of these connections.
        targets = [name for name in targets if name not in _SERVERS]
    target = generator.choice(targets)
    seconds = 0.0 if kind is FaultKind.KILL else longest_fault ** generator.random()
    return Fault(kind, target, seconds)
