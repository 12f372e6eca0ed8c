"""Which workers to add or remove when an elastic group changes its size. Pure."""

from collections.abc import Sequence
from dataclasses import replace

from kubealign.local.failure import RunRefused
from kubealign.roles import Process
from kubealign.spec.job import AlignmentJob

MOST_REPLICAS = 1024


def scaled(
    job: AlignmentJob, processes: Sequence[Process], group: str, replicas: object
) -> tuple[list[Process], list[Process]]:
    """The processes to add and those to remove, so that the group has `replicas`.

    Newcomers take the lowest free numbers, those with the highest go. Raises RunRefused."""
    elastic = {process.group for process in processes if process.elastic}
    if group not in elastic:
        raise RunRefused(
            f"{group!r} cannot be scaled; elastic groups of this job: {', '.join(sorted(elastic)) or 'none'}"
        )
    rollout = job.spec.effective_rollout
    least = rollout.min_replicas if rollout is not None and group == "rollout" else 1
    if not isinstance(replicas, int) or isinstance(replicas, bool) or not least <= replicas <= MOST_REPLICAS:
        raise RunRefused(
            f"replicas of {group} is {replicas!r}: it must be a whole number from {least} to {MOST_REPLICAS}"
        )
    members = sorted((p for p in processes if p.group == group), key=_number)
    taken = {_number(process) for process in members}
    free = [number for number in range(replicas + len(taken)) if number not in taken]
    missing = max(0, replicas - len(members))
    added = [replace(members[0], name=f"{group}-{number}") for number in free[:missing]]
    return added, members[replicas:] if replicas < len(members) else []


def _number(process: Process) -> int:
    return int(process.name.rsplit("-", 1)[1])
