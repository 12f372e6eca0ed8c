"""A sum of named bytes, and a process's share of the machine."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Moment:
    """What lies in memory at one moment of the work. parts: bytes by name, in the order they are shown."""

    name: str
    parts: Mapping[str, int]

    @property
    def total(self) -> int:
        return sum(self.parts.values())


def highest(moments: Iterable[Moment]) -> Moment:
    """The one that needs the most; of equals the first."""
    return max(moments, key=lambda moment: moment.total)


@dataclass(frozen=True)
class Need:
    """One kind of process of a job. processes: how many there are; devices: accelerators that each of them
    takes. moment: one device's memory at its height. host: bytes of one process in the machine's memory.
    notes: what else there is to know."""

    group: str
    processes: int
    devices: int
    moment: Moment
    host: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
