"""CPU cores within affinity mask and cgroup quotas, and their division among a job's processes."""

import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from kubealign.cgroups import Cgroup, iter_cgroups
from kubealign.role_specs import ComputePhase
from kubealign.roles import Process, roles
from kubealign.spec.job import AlignmentJob


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


def compute_threads(process: Process, processes: Sequence[Process], cores: int | None = None) -> int:
    """Return the number of compute threads for this process.

    The share of the cores among the processes that compute at the same time, bounded by OMP_NUM_THREADS
    where set. Trainer and critic step at the same time. Scorers compute while samples are generated, but
    rollout workers share among themselves only: generation dominates that phase, scorers fill its gaps.
    """
    cores = cores or available_cores()
    count = Counter(other.role_spec.compute for other in processes)
    match process.role_spec.compute:
        case None:
            sharing = 1
        case ComputePhase.SCORING:
            sharing = count[ComputePhase.SCORING] + count[ComputePhase.GENERATION]
        case phase:
            sharing = count[phase]
    return max(1, min(cores // max(1, sharing), _omp_limit() or cores))


def _omp_limit() -> int | None:
    """Return the user's limit of threads per process; None if unset.

    Of a list with one number per nesting level, the first.
    """
    outermost = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(outermost) if outermost.isdecimal() else None


def computes_in_turns(job: AlignmentJob) -> bool:
    """Return whether the job's processes never compute at the same time with more threads than there are
    cores.

    They do overlap where samples are generated while the trainer learns, or while models score them.
    """
    spec = job.spec
    models = any(reward.models for reward in spec.rewards)
    scorers = any(
        process.role_spec.compute is ComputePhase.SCORING and process.role_spec.model is not None
        for process in roles(job)
    )
    return not (spec.is_asynchronous or models or scorers)


def should_yield_cpu(process: Process, processes: Sequence[Process], job: AlignmentJob) -> bool:
    """Return whether a process runs at a lower CPU priority than the rollout workers.

    Tokens of a response are generated one after another and a step waits for the longest response;
    computation on finished responses can wait. In an asynchronous job both are equally urgent.
    """
    sampled = any(other.role_spec.compute is ComputePhase.GENERATION for other in processes)
    is_other_compute = process.role_spec.compute not in (None, ComputePhase.GENERATION)
    return sampled and is_other_compute and not job.spec.is_asynchronous and not computes_in_turns(job)
