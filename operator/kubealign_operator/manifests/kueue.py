"""Kueue integration: queue labels on the pods, and gang admission.

Trainer, critic, reference, teacher, rewards and `minReplicas` rollout workers form one pod group;
preparation, driver, bus and further rollout workers are admitted one by one.
https://kueue.sigs.k8s.io/docs/tasks/run/plain_pods/
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kubealign.labels import QUEUE_LABEL
from kubealign.process_settings import Role
from kubealign.roles import Process
from kubealign_operator import names
from kubealign_operator.manifests.context import RenderContext

PREFIX = "kueue.x-k8s.io/"
GROUP_NAME = f"{PREFIX}pod-group-name"
GROUP_COUNT = f"{PREFIX}pod-group-total-count"


def kueue_annotations(annotations: Mapping[str, str]) -> dict[str, str]:
    """Return the job's annotations that are addressed to Kueue."""
    return {name: value for name, value in annotations.items() if name.startswith(PREFIX)}


def admission_group(context: RenderContext, processes: Sequence[Process]) -> list[Process]:
    """Return the processes that are admitted together."""
    rollout = context.job.spec.own_rollout
    required = 0 if rollout is None else rollout.min_replicas
    workers = [process for process in processes if process.role_spec.is_worker]
    rollout_workers = [
        process for process in workers if process.role is Role.ROLLOUT and process.replica < required
    ]
    return [*(process for process in workers if process.role is not Role.ROLLOUT), *rollout_workers]


@dataclass(frozen=True)
class PodGroup:
    """The pods of a job that Kueue admits together.

    Attributes:
        members: Names of the processes.
    """

    name: str = ""
    members: frozenset[str] = frozenset()

    def labels(self, process: Process) -> dict[str, str]:
        """Return the labels of the process's pod; empty when it is not in the group."""
        return {GROUP_NAME: self.name} if process.name in self.members else {}

    def annotations(self, process: Process) -> dict[str, str]:
        """Return the annotations of the process's pod; empty when it is not in the group."""
        return {GROUP_COUNT: str(len(self.members))} if process.name in self.members else {}


def pod_group(context: RenderContext, processes: Sequence[Process]) -> PodGroup:
    """Return the job's pod group, once for all of its pods; it is empty when no queue admits the job, or
    when it would have one member.

    Args:
        processes: All processes of the job.
    """
    if QUEUE_LABEL not in context.job.metadata.labels:
        return PodGroup()
    members = admission_group(context, processes)
    if len(members) == 1:
        return PodGroup()
    return PodGroup(
        names.pod_group(context.name, context.uid), frozenset(process.name for process in members)
    )
