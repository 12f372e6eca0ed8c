"""Memory peaks by part, and the requirements of a process group."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class MemoryPeak:
    """Memory in use at one moment of a step. parts: bytes by name, in display order."""

    name: str
    parts: Mapping[str, int]

    @property
    def total(self) -> int:
        """Sum of all parts in bytes."""
        return sum(self.parts.values())


def largest_peak(peaks: Iterable[MemoryPeak]) -> MemoryPeak:
    """Return the largest peak; the first one of equals."""
    return max(peaks, key=lambda peak: peak.total)


@dataclass(frozen=True)
class ProcessRequirements:
    """Requirements of one process group.

    Attributes:
        processes: Number of processes.
        devices: Accelerators of each process.
        peak: Memory peak of one device.
        host: Bytes of one process in host memory.
        notes: Remarks for the user.
    """

    group: str
    processes: int
    devices: int
    peak: MemoryPeak
    host: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
