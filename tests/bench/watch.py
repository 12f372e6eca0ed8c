"""Measures processor time and memory of running processes by group, and the load of the rest of the
machine."""

import bisect
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import psutil

_SECONDS_BETWEEN = 0.5
# Excess of a resident set size over its maximum that triggers reading the proportional sizes again, as a
# share of the maximum of all groups together.
_HIGHER = 0.01
# Pseudo-group.
_ALL = "all together"


@dataclass(frozen=True)
class Moment:
    """A measurement at `time` (seconds since the epoch): processor seconds so far, by group and of the whole
    machine, and bytes by group if they were read (see `Highs`). The bytes are proportional set sizes, whose
    sum counts shared pages once."""

    time: float
    group_seconds: Mapping[str, float]
    machine_seconds: float
    group_bytes: Mapping[str, int] | None


@dataclass
class Usage:
    """All measurements of a run."""

    moments: list[Moment] = field(default_factory=list)

    def cpu_seconds(self, begin: float, end: float) -> dict[str, float]:
        """Return the processor seconds of each group between two times (seconds since the epoch)."""
        first, last = self._at(begin), self._at(end)
        return {
            group: seconds - first.group_seconds.get(group, 0.0)
            for group, seconds in last.group_seconds.items()
        }

    def others_cores(self, begin: float, end: float) -> float:
        """Return the mean number of cores that everything else on the machine used. Above a few hundredths,
        the seconds measured meanwhile are too long."""
        first, last = self._at(begin), self._at(end)
        ours = sum(self.cpu_seconds(begin, end).values())
        return max(0.0, last.machine_seconds - first.machine_seconds - ours) / max(
            1e-9, last.time - first.time
        )

    def peak_bytes(self, end: float) -> tuple[dict[str, int], int]:
        """Return the peak bytes of each group until `end`, and the peak of all groups together."""
        read = [moment.group_bytes for moment in self.moments if moment.time <= end and moment.group_bytes]
        groups = dict.fromkeys(group for sizes in read for group in sizes)
        peaks = {group: max(sizes.get(group, 0) for sizes in read) for group in groups}
        return peaks, max((sum(sizes.values()) for sizes in read), default=0)

    def _at(self, moment: float) -> Moment:
        times = [sample.time for sample in self.moments]
        return self.moments[min(bisect.bisect_left(times, moment), len(times) - 1)]


class Highs:
    """Decides when to read proportional set sizes: when the resident bytes of a group, or of all groups,
    reach a new maximum. Reading them makes the kernel walk the page tables (a tenth of a second for a job of
    ten processes), which takes a core from the measured work; resident sizes are cheap counters."""

    def __init__(self) -> None:
        self._highest: dict[str, int] = {}

    def reached(self, resident: Mapping[str, int]) -> bool:
        """Return whether there is a new maximum. resident: bytes by group."""
        now = {**resident, _ALL: sum(resident.values())}
        least = _HIGHER * self._highest.get(_ALL, 0)
        higher = any(size > self._highest.get(group, 0) + least for group, size in now.items())
        if higher:
            self._highest |= {group: max(size, self._highest.get(group, 0)) for group, size in now.items()}
        return higher


class Watch:
    """Watches a process and its descendants from a thread of its own. A context manager.

    `group_of` maps {pid: parent's pid} to the group of each pid. Without `memory` no bytes are read."""

    def __init__(
        self, root: int, group_of: Callable[[dict[int, int]], dict[int, str]], memory: bool = True
    ) -> None:
        self._reads_memory = memory
        self.usage = Usage()
        self._root = psutil.Process(root)
        self._group_of = group_of
        self._seen: dict[int, tuple[str, float]] = {}
        self._highs = Highs()
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watch", daemon=True)

    def __enter__(self) -> Usage:
        self._thread.start()
        return self.usage

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(30)

    def _watch(self) -> None:
        while not self._done.wait(_SECONDS_BETWEEN):
            try:
                family = [self._root, *self._root.children(recursive=True)]
            except psutil.NoSuchProcess:
                return
            groups = self._group_of({process.pid: _parent(process) for process in family})
            memory = self._memory(family, groups) if self._reads_memory else None
            seconds = self._cpu(family, groups)
            self.usage.moments.append(Moment(time.time(), seconds, _machine_seconds(), memory))

    def _cpu(self, family: list[psutil.Process], groups: dict[int, str]) -> dict[str, float]:
        """Return the processor seconds by group, including processes that have ended."""
        for process in family:
            try:
                times = process.cpu_times()
            except (psutil.NoSuchProcess, psutil.ZombieProcess):
                continue
            self._seen[process.pid] = (groups[process.pid], times.user + times.system)
        seconds: dict[str, float] = {}
        for group, used in self._seen.values():
            seconds[group] = seconds.get(group, 0.0) + used
        return seconds

    def _memory(self, family: list[psutil.Process], groups: dict[int, str]) -> dict[str, int] | None:
        """Return the bytes by group; None if they were not read."""
        if not self._highs.reached(_bytes(family, groups, _resident)):
            return None
        return _bytes(family, groups, _proportional)


def _bytes(
    family: list[psutil.Process], groups: dict[int, str], size: Callable[[psutil.Process], int]
) -> dict[str, int]:
    """Sum the sizes of the processes by group."""
    sizes: Counter[str] = Counter()
    for process in family:
        try:
            sizes[groups[process.pid]] += size(process)
        except (psutil.NoSuchProcess, psutil.ZombieProcess, psutil.AccessDenied):
            continue
    return dict(sizes)


def _resident(process: psutil.Process) -> int:
    return int(process.memory_info().rss)


def _proportional(process: psutil.Process) -> int:
    memory = process.memory_full_info()
    return int(getattr(memory, "pss", memory.uss))


def _machine_seconds() -> float:
    """Return the machine's busy seconds. The time of guests is already included in user time."""
    times = psutil.cpu_times()
    return float(times.user + times.system + times.nice) + sum(
        getattr(times, name, 0.0) for name in ("irq", "softirq", "steal")
    )


def _parent(process: psutil.Process) -> int:
    try:
        return int(process.ppid())
    except psutil.NoSuchProcess:
        return 0
