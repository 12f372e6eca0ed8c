"""Scheduling fields that an admission by Kueue adds to pods."""

from collections.abc import Mapping, Sequence
from typing import Any

from kubealign_operator.kube_views.kueue_view import PodPlacement

Json = dict[str, Any]

_PREFIX = "kueue.x-k8s.io/"
#: Label and annotation by which Kueue attributes a pod to a Workload.
_POD_SET_LABEL = f"{_PREFIX}podset"
_WORKLOAD_ANNOTATION = f"{_PREFIX}workload"


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
        additional = [item for item in placement.tolerations if item not in spec.get("tolerations", [])]
        if additional:
            spec["tolerations"] = [*spec.get("tolerations", []), *additional]


def admission_placement(workload_name: str, pod_set: str) -> PodPlacement:
    """Return the metadata by which Kueue attributes a pod to its Workload."""
    return PodPlacement(labels={_POD_SET_LABEL: pod_set}, annotations={_WORKLOAD_ANNOTATION: workload_name})
