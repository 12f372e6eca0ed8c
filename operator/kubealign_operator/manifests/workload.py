"""Kueue Workloads of a job, with its pod sets by role.

Kueue admits the job as a whole: one Workload asks quota for all of its pods, those of the rollout workers
above `minReplicas` as far as there is quota. Rollout workers that were not admitted with the job, or were
added later, have Workloads of their own.
https://kueue.sigs.k8s.io/docs/concepts/workload/
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kubealign.kube.resources import WORKLOADS
from kubealign.labels import QUEUE_LABEL, QUEUE_PRIORITY_LABEL
from kubealign.process_settings import Role
from kubealign.roles import PREPARE, Process
from kubealign_operator import names
from kubealign_operator.kube_views.lenient_json import get_path, items, labels, mapping, text
from kubealign_operator.kube_views.topology import TopologyInvalid, topology_request
from kubealign_operator.manifests.context import RenderContext
from kubealign_operator.manifests.metadata import object_metadata

#: Pod set of the processes that need no accelerator: preparation, bus and driver.
CONTROL = "control"
#: Pod sets of a Workload that Kueue allows.
MAX_POD_SETS = 8
#: Kind of Kueue's own priority classes.
WORKLOAD_PRIORITY_CLASS = "WorkloadPriorityClass"
#: Fields of a pod by which Kueue chooses a flavor and counts quota.
_SCHEDULING_FIELDS = (
    "nodeSelector", "affinity", "tolerations", "priorityClassName", "runtimeClassName", "overhead",
    "resourceClaims",
)  # fmt: skip
#: Without the image: an upgrade must not cost a waiting job its turn.
_CONTAINER_FIELDS = ("name", "resources", "restartPolicy")

Json = dict[str, Any]
#: Returns the pod template, as JSON with `metadata` and `spec`, of a process.
PodTemplateBuilder = Callable[[Process], Mapping[str, Any]]


class TooManyPodSets(ValueError):
    """The job has more pod sets than a Workload may have."""


@dataclass(frozen=True)
class PodSet:
    """Pods of a job for which Kueue reserves quota together.

    Attributes:
        groups: Process groups of the pods.
        count: Number of pods.
        min_count: Number of pods with which the job can start; None: all.
        template: Pod template as JSON, reduced to the fields that Kueue reads.
        topology: Kueue's topologyRequest as JSON; None: none.
    """

    name: str
    groups: tuple[str, ...]
    count: int
    min_count: int | None
    template: Mapping[str, Any]
    topology: Mapping[str, Any] | None = None

    def manifest(self) -> Json:
        result: Json = {"name": self.name, "count": self.count, "template": self.template}
        if self.min_count is not None and self.min_count < self.count:
            result["minCount"] = self.min_count
        if self.topology is not None:
            result["topologyRequest"] = self.topology
        return result


@dataclass(frozen=True)
class WorkloadPriority:
    """Priority class of a Workload. `value` is what the class says."""

    group: str
    kind: str
    name: str
    value: int = 0


def queue_of(context: RenderContext) -> str:
    """Return the LocalQueue of the job; empty: no queue admits it."""
    return context.job.metadata.labels.get(QUEUE_LABEL, "")


def priority_class_name(context: RenderContext) -> str:
    """Return the WorkloadPriorityClass that the job names; empty: none."""
    return context.job.metadata.labels.get(QUEUE_PRIORITY_LABEL, "")


def pod_sets(
    context: RenderContext, processes: Sequence[Process], build: PodTemplateBuilder
) -> tuple[PodSet, ...]:
    """Return the pod sets of the job: one for the processes without a model, one for each other group.

    Groups with equal templates share a set where the groups are too many.

    Args:
        processes: All processes of the job, its bus included.

    Raises:
        TooManyPodSets: The groups are too many nevertheless.
        TopologyInvalid: The annotations of a group's pods are no request for a topology.
    """
    control = [process for process in processes if is_control(process)]
    sets = [_control_set(control, build)]
    by_group: dict[str, list[Process]] = {}
    for process in processes:
        if not is_control(process):
            by_group.setdefault(process.group, []).append(process)
    rollout = context.job.spec.own_rollout
    for group, members in by_group.items():
        minimum = None
        if rollout is not None and group == Role.ROLLOUT:
            pods_per_worker = sum(member.replica == members[0].replica for member in members)
            minimum = rollout.min_replicas * pods_per_worker
        pod = build(members[0])
        template, topology = reduced_template(pod), _topology(group, pod)
        sets.append(PodSet(group, (group,), len(members), minimum, template, topology))
    sets = sets if len(sets) <= MAX_POD_SETS else _merge_equal(sets)
    if len(sets) > MAX_POD_SETS:
        listed = ", ".join(pod_set.name for pod_set in sets)
        raise TooManyPodSets(
            f"Kueue admits jobs with at most {MAX_POD_SETS} different kinds of pods, and this one has "
            f"{len(sets)} ({listed}): give some of them the same resources, so that they count as one"
        )
    return tuple(sets)


def is_control(process: Process) -> bool:
    """Return True for preparation, bus and driver."""
    return process.name in (PREPARE, names.NATS, names.DRIVER)


def pod_set_of(process: Process, sets: Sequence[PodSet]) -> PodSet:
    """Return the pod set to which a process belongs."""
    group = CONTROL if is_control(process) else process.group
    return next(pod_set for pod_set in sets if group in pod_set.groups)


def workload(
    context: RenderContext,
    sets: Sequence[PodSet],
    priority: WorkloadPriority | None,
    unit: str = "",
) -> Json:
    """Return the Workload that asks Kueue for quota.

    Args:
        unit: The additional rollout worker for which the Workload asks; empty: the job as a whole.
    """
    metadata = object_metadata(context, names.workload(context.name, context.uid, unit))
    if unit:
        metadata["labels"][names.UNIT_LABEL] = unit
    spec: Json = {
        "queueName": queue_of(context),
        "active": True,
        "podSets": [pod_set.manifest() for pod_set in sets],
    }
    if priority is not None:
        spec["priorityClassRef"] = {"group": priority.group, "kind": priority.kind, "name": priority.name}
    metadata["annotations"] = {names.POD_SETS_ANNOTATION: _digest(spec)}
    if priority is not None:
        # Not part of the digest: Kueue itself follows a change of a WorkloadPriorityClass.
        spec["priority"] = priority.value
    return {
        "apiVersion": WORKLOADS.base.removeprefix("/apis/"),
        "kind": WORKLOADS.kind,
        "metadata": metadata,
        "spec": spec,
    }


def digest_of(manifest: Mapping[str, Any]) -> str:
    """Return the digest of a Workload's pod sets, queue and priority."""
    return labels(get_path(manifest, "metadata", "annotations"))[names.POD_SETS_ANNOTATION]


def priority_reference(context: RenderContext, sets: Sequence[PodSet]) -> WorkloadPriority | None:
    """Return the priority class of the job without its value, in Kueue's order: that of its label, then that
    of its pods; None: it has none.
    """
    name = priority_class_name(context)
    if name:
        return WorkloadPriority("kueue.x-k8s.io", WORKLOAD_PRIORITY_CLASS, name)
    class_names = (text(get_path(pod_set.template, "spec", "priorityClassName")) for pod_set in sets)
    name = next((name for name in class_names if name), "")
    return WorkloadPriority("scheduling.k8s.io", "PriorityClass", name) if name else None


def reduced_template(pod: Mapping[str, Any]) -> Json:
    """Return the template of a pod with the fields that Kueue reads, so that a change of others, such as an
    image's command, does not change the Workload.
    """
    spec = mapping(pod.get("spec"))
    result: Json = {
        "containers": [_reduced_container(container) for container in items(spec.get("containers"))],
        **{name: spec[name] for name in _SCHEDULING_FIELDS if name in spec},
    }
    if items(spec.get("initContainers")):
        result["initContainers"] = [_reduced_container(each) for each in items(spec["initContainers"])]
    # The API server asks for it in a Workload.
    return {"spec": {**result, "restartPolicy": "Never"}}


def _reduced_container(container: Mapping[str, Any]) -> Json:
    return {name: container[name] for name in _CONTAINER_FIELDS if name in container}


def _control_set(processes: Sequence[Process], build: PodTemplateBuilder) -> PodSet:
    """Return the set of preparation, bus and driver, as one pod with the scheduling fields of the driver.

    Preparation ends before the driver starts: as an init container it counts only where it needs more.
    """
    pods = {process.name: build(process) for process in processes}
    templates = {name: reduced_template(pod)["spec"] for name, pod in pods.items()}
    spec = dict(templates[names.DRIVER])
    containers = [
        *_renamed(templates[names.DRIVER], names.DRIVER),
        *_renamed(templates[names.NATS], names.NATS),
    ]
    spec["containers"] = containers
    spec["initContainers"] = [
        *items(spec.get("initContainers")),
        *_renamed(templates[PREPARE], PREPARE),
    ]
    return PodSet(CONTROL, (CONTROL,), 1, None, {"spec": spec}, _topology(CONTROL, pods[names.DRIVER]))


def _topology(group: str, pod: Mapping[str, Any]) -> Json | None:
    try:
        return topology_request(labels(get_path(pod, "metadata", "annotations")))
    except TopologyInvalid as error:
        raise TopologyInvalid(f"podTemplate of {group}: {error}") from None


def _renamed(spec: Mapping[str, Any], prefix: str) -> list[Json]:
    """Return the containers of a pod, named so that they are unique beside those of other pods."""
    return [
        {**container, "name": prefix if index == 0 else f"{prefix}-{index}"}
        for index, container in enumerate(items(spec["containers"]))
    ]


def _merge_equal(sets: Sequence[PodSet]) -> list[PodSet]:
    """Return the sets with those joined whose templates are equal. A set with a minimum stays alone."""
    merged: dict[str, PodSet] = {}
    for pod_set in sets:
        key = json.dumps([pod_set.template, pod_set.topology], sort_keys=True)
        if pod_set.min_count is not None or pod_set.name == CONTROL:
            key = pod_set.name
        other = merged.get(key)
        if other is not None:
            groups = (*other.groups, *pod_set.groups)
            merged[key] = replace(other, groups=groups, count=other.count + pod_set.count)
        else:
            merged[key] = pod_set
    return list(merged.values())


def _digest(spec: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]
