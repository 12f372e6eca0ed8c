"""Scheduling fields that an admission by Kueue adds to pods."""

from collections.abc import Mapping, Sequence
from typing import Any

from kubealign_operator.kube_views.kueue_view import PodPlacement
from kubealign_operator.kube_views.topology import UNCONSTRAINED
from kubealign_operator.manifests.workload import CONTROL, PodSet

Json = dict[str, Any]

_PREFIX = "kueue.x-k8s.io/"
#: Label and annotation by which Kueue attributes a pod to a Workload.
_POD_SET_LABEL = f"{_PREFIX}podset"
_WORKLOAD_ANNOTATION = f"{_PREFIX}workload"
_TOPOLOGY_GATE = f"{_PREFIX}topology"


def without_kueue(document: Mapping[str, str]) -> dict[str, str]:
    """Return labels or annotations without those that are addressed to Kueue: the job is queued, not its
    pods.
    """
    return {name: value for name, value in document.items() if not name.startswith(_PREFIX)}


def apply_placements(pod: Json, placements: Sequence[PodPlacement]) -> None:
    """Add the scheduling fields of an admission to a pod."""
    for placement in placements:
        metadata, spec = pod["metadata"], pod["spec"]
        if placement.labels:
            metadata["labels"] = {**metadata["labels"], **placement.labels}
        if placement.annotations:
            metadata["annotations"] = {**metadata.get("annotations", {}), **placement.annotations}
        if placement.node_selector:
            spec["nodeSelector"] = {**spec.get("nodeSelector", {}), **placement.node_selector}
        if placement.scheduling_gates:
            spec["schedulingGates"] = [{"name": name} for name in placement.scheduling_gates]
        additional = [item for item in placement.tolerations if item not in spec.get("tolerations", [])]
        if additional:
            spec["tolerations"] = [*spec.get("tolerations", []), *additional]


def admission_placement(workload_name: str, pod_set: str) -> PodPlacement:
    """Return the metadata by which Kueue attributes a pod to its Workload."""
    return PodPlacement(labels={_POD_SET_LABEL: pod_set}, annotations={_WORKLOAD_ANNOTATION: workload_name})


def topology_placement(pod_set: PodSet, domain: Mapping[str, str]) -> PodPlacement:
    """Return what the pods of a set need on flavors with a topology.

    Kueue removes the gate of each pod and adds the node labels of its domain, for as many pods as the set
    counts. The control set counts its pods as one: they get the domain here.

    Args:
        domain: Node labels of the first domain that Kueue has assigned to the set.
    """
    annotations = UNCONSTRAINED if pod_set.topology is None else {}
    if pod_set.name == CONTROL:
        return PodPlacement(annotations=annotations, node_selector=domain)
    return PodPlacement(annotations=annotations, scheduling_gates=(_TOPOLOGY_GATE,))
