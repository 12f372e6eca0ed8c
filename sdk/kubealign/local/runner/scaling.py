"""Selection of the workers to add or remove when an elastic group is scaled. Pure."""

from collections.abc import Sequence

from kubealign.local.errors import RunRefused
from kubealign.roles import Process, with_replica
from kubealign.spec.base import MAX_REPLICAS
from kubealign.spec.job import AlignmentJob


def plan_scaling(
    job: AlignmentJob, processes: Sequence[Process], group: str, replicas: object
) -> tuple[list[Process], list[Process]]:
    """Return the processes to add and those to remove, so that the group has `replicas` workers.

    New workers take the lowest free numbers; the highest numbers are removed. Raises RunRefused.
    """
    elastic = {process.group for process in processes if process.elastic}
    if group == "rollout" and job.spec.rollout_with_trainer:
        raise RunRefused(
            "rollout.placement is WithTrainer: each of the trainer's processes has one worker, and "
            "trainer.ranks cannot change while the job runs"
        )
    if group not in elastic:
        raise RunRefused(
            f"{group!r} cannot be scaled; elastic groups of this job: {', '.join(sorted(elastic)) or 'none'}"
        )
    rollout = job.spec.effective_rollout
    minimum = rollout.min_replicas if rollout is not None and group == "rollout" else 1
    if (
        not isinstance(replicas, int)
        or isinstance(replicas, bool)
        or not (minimum <= replicas <= MAX_REPLICAS)
    ):
        raise RunRefused(
            f"replicas of {group} is {replicas!r}: it must be an integer from {minimum} to {MAX_REPLICAS}"
        )
    server = None if rollout is None or group != "rollout" else rollout.engine.openai
    if server is not None and replicas > 1 and server.names_one_server:
        raise RunRefused(
            f"replicas of rollout is {replicas}, and rollout.engine.openai.url names one server, "
            f"{server.url}, without {{worker}}: it must be 1"
        )
    taken = sorted({process.replica for process in processes if process.group == group})
    free = [number for number in range(replicas + len(taken)) if number not in taken]
    pattern = [process for process in processes if process.group == group and process.replica == taken[0]]
    missing = free[: max(0, replicas - len(taken))]
    added = [with_replica(process, number) for number in missing for process in pattern]
    surplus = taken[replicas:]
    return added, [process for process in processes if process.group == group and process.replica in surplus]
