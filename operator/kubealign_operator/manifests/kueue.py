"""Kueue integration: queue labels on the pods, and gang admission.

Trainer, critic, reference, teacher, rewards and `minReplicas` rollout workers form one pod group;
preparation, driver, bus and further rollout workers are admitted one by one.
https://kueue.sigs.k8s.io/docs/tasks/run/plain_pods/
"""

from collections.abc import Mapping, Sequence

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


def pod_group_metadata(
    context: RenderContext, process: Process, processes: Sequence[Process]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return (labels, annotations) of the process's pod group; empty when the pod is admitted alone or by no
    queue.
    """
    members = admission_group(context, processes)
    if QUEUE_LABEL not in context.job.metadata.labels or process not in members or len(members) == 1:
        return {}, {}
    return {GROUP_NAME: names.pod_group(context.name, context.uid)}, {GROUP_COUNT: str(len(members))}
