"""Kueue integration: queue labels on the pods, and gang admission.

Trainer, critic, reference, teacher, rewards and `minReplicas` rollout workers form one pod group;
preparation,
driver, bus and further rollout workers are admitted one by one.
https://kueue.sigs.k8s.io/docs/tasks/run/plain_pods/
"""

from collections.abc import Mapping, Sequence

from kubealign.process import Role
from kubealign.roles import Process
from kubealign_operator.render import names
from kubealign_operator.render.scene import Scene

PREFIX = "kueue.x-k8s.io/"
QUEUE = f"{PREFIX}queue-name"
GROUP_NAME = f"{PREFIX}pod-group-name"
GROUP_COUNT = f"{PREFIX}pod-group-total-count"
_ONE_BY_ONE = (Role.DRIVER, Role.NATS)


def passed_on(annotations: Mapping[str, str]) -> dict[str, str]:
    """Return the job's annotations that are addressed to Kueue."""
    return {name: value for name, value in annotations.items() if name.startswith(PREFIX)}


def gang(scene: Scene, processes: Sequence[Process]) -> list[Process]:
    """Return the processes that are admitted together."""
    rollout = scene.job.spec.own_rollout
    required = 0 if rollout is None else rollout.min_replicas
    workers = [process for process in processes if process.role is Role.ROLLOUT and process.replica < required]
    other_processes = [process for process in processes if process.role not in (*_ONE_BY_ONE, Role.ROLLOUT)]
    return [*other_processes, *workers]


def group_of(
    scene: Scene, process: Process, processes: Sequence[Process]
) -> tuple[dict[str, str], dict[str, str]]:
    """Return (labels, annotations) of the process's pod group; empty when the pod is admitted alone or by no
    queue.
    """
    members = gang(scene, processes)
    if QUEUE not in scene.job.metadata.labels or process not in members or len(members) == 1:
        return {}, {}
    return {GROUP_NAME: names.pod_group(scene.name, scene.uid)}, {GROUP_COUNT: str(len(members))}
