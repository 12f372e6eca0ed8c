"""How many cores a process has to compute with."""

import math
import os
from collections.abc import Iterable, Iterator

from kubealign.control_groups import ControlGroup, control_groups


def available_cores() -> int:
    """Cores that this process may use."""
    return cores_within(_allowed(), control_groups("cpu"))


def cores_within(allowed: int, groups: Iterable[ControlGroup]) -> int:
    """Those that it may run on, or as many as the quota of processor time of one of its groups comes to
    (a container's CPU limit), rounded up: with fewer threads than that, time would be left over."""
    return min([allowed, *map(math.ceil, _quotas(groups))])


def _quotas(groups: Iterable[ControlGroup]) -> Iterator[float]:
    """Processor seconds a second, of each group that has a quota."""
    for group in groups:
        if group.version == 1:
            quota, period = group.read("cpu.cfs_quota_us"), group.read("cpu.cfs_period_us")
        else:
            quota, _, period = (group.read("cpu.max") or "").partition(" ")
        if quota and period and quota not in ("max", "-1"):
            yield int(quota) / int(period)


def _allowed() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
