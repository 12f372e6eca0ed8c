"""CPU cores available to a process, within its affinity mask and cgroup quotas."""

import math
import os
from collections.abc import Iterable, Iterator

from kubealign.cgroups import Cgroup, iter_cgroups


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return usable_cores(_affinity_cores(), iter_cgroups("cpu"))


def usable_cores(allowed: int, groups: Iterable[Cgroup]) -> int:
    """Return the number of usable cores: the allowed cores, bounded by the CPU quota of each cgroup.

    A quota (a container's CPU limit) is rounded up: fewer threads would leave quota unused.
    """
    return min([allowed, *map(math.ceil, _quotas(groups))])


def _quotas(groups: Iterable[Cgroup]) -> Iterator[float]:
    """Yield the CPU quota of each group that has one, in CPU seconds per second."""
    for group in groups:
        if group.version == 1:
            quota, period = group.read("cpu.cfs_quota_us"), group.read("cpu.cfs_period_us")
        else:
            quota, _, period = (group.read("cpu.max") or "").partition(" ")
        if quota and period and quota not in ("max", "-1"):
            yield int(quota) / int(period)


def _affinity_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
