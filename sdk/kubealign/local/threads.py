"""How the machine's cores are shared among the processes of a job."""

import os
from collections import Counter
from collections.abc import Sequence

from kubealign.local.cores import available_cores
from kubealign.process import Role
from kubealign.roles import Process, roles
from kubealign.spec.job import AlignmentJob

# Trainer and critic take their steps at the same time; rollout and scorers while samples come in, or before.
_TRAINING = frozenset({Role.TRAINER, Role.CRITIC})
_SAMPLING = frozenset({Role.ROLLOUT, Role.REWARD, Role.REFERENCE, Role.TEACHER})


def threads(process: Process, processes: Sequence[Process], cores: int | None = None) -> int:
    """Threads of computation for this process: its share of the cores among those that compute when it does,
    and no more than OMP_NUM_THREADS, where that is set.

    Rollout workers share among themselves alone: generating is most of that phase, scorers fill its gaps."""
    cores = cores or available_cores()
    count = Counter(other.role for other in processes if not other.one_shot)
    if process.role in _TRAINING:
        sharing = sum(count[role] for role in _TRAINING)
    elif process.role is Role.ROLLOUT:
        sharing = count[Role.ROLLOUT]
    elif process.role in _SAMPLING:
        sharing = sum(count[role] for role in _SAMPLING)
    else:
        sharing = 1
    return max(1, min(cores // max(1, sharing), _most() or cores))


def _most() -> int | None:
    """Threads that the user allows a process; None: nothing is said. Of a list, one number for each level of
    nesting, the first."""
    outermost = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
    return int(outermost) if outermost.isdecimal() else None


def take_turns(job: AlignmentJob) -> bool:
    """Whether the job's processes never compute at the same time with more threads than there are cores: they
    do where samples are made while the trainer learns, and where models score them meanwhile."""
    spec = job.spec
    models = any(reward.models for reward in spec.rewards)
    scorers = any(process.role in (Role.REFERENCE, Role.TEACHER) for process in roles(job))
    return not (spec.asynchronous or models or scorers)


def yields(process: Process, processes: Sequence[Process], job: AlignmentJob) -> bool:
    """Whether a process has what the rollout workers leave of the cores. A response's tokens come one after
    another, and a step waits for the longest; what is computed of those that are finished can wait. In an
    asynchronous job both are as urgent."""
    sampled = any(other.role is Role.ROLLOUT for other in processes)
    others = process.role in _TRAINING | _SAMPLING and process.role is not Role.ROLLOUT
    return sampled and others and not job.spec.asynchronous and not take_turns(job)
