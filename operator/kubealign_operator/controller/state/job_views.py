"""Reduced jobs, and the view that one job has of another."""

from collections.abc import Mapping
from typing import Any

from kubealign.spec.dependencies import result_kind_of
from kubealign_operator.kube_views.lenient_json import get_path, integer, mapping, text
from kubealign_operator.kube_views.observed_job import DependencyView, VolumePath

Json = dict[str, Any]

_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def strip_unused_metadata(job: Json) -> Json:
    """Remove managedFields and kubectl's last-applied annotation."""
    metadata = {name: value for name, value in job["metadata"].items() if name != "managedFields"}
    annotations = metadata.get("annotations")
    if isinstance(annotations, dict) and _APPLIED in annotations:
        metadata["annotations"] = {name: value for name, value in annotations.items() if name != _APPLIED}
    return {**job, "metadata": metadata}


def phase_of(job: Mapping[str, Any]) -> str:
    """Return status.phase; empty before the first status."""
    return text(get_path(job, "status", "phase"))


def credentials_generation(status: Mapping[str, Any]) -> int:
    """Return the generation of the job's credentials; 1 for a job of an earlier release."""
    return max(1, integer(get_path(status, "credentials", "generation")) or 1)


def document_generation(status: Mapping[str, Any]) -> int:
    """Return the generation of the job's document; 1 for a job of an earlier release."""
    return max(1, integer(get_path(status, "document", "generation")) or 1)


def dependency_names(job: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the jobs whose results a job reads: every `job: {name: NAME}` in its spec."""
    names: set[str] = set()
    nodes = [job.get("spec")]
    while nodes:
        node = nodes.pop()
        if isinstance(node, dict):
            name = get_path(node.get("job"), "name")
            if isinstance(name, str):
                names.add(name)
            nodes += node.values()
        elif isinstance(node, list):
            nodes += node
    return frozenset(names)


def dependency_view(job: Mapping[str, Any]) -> DependencyView:
    """Return the view that a dependent job has of this job."""
    return DependencyView(
        name=text(get_path(job, "metadata", "name")),
        uid=text(get_path(job, "metadata", "uid")),
        phase=phase_of(job),
        message=text(get_path(job, "status", "message")),
        volume=_volume_path(get_path(job, "spec", "checkpoint", "volume")),
        result=_volume_path(get_path(job, "status", "result")),
        makes=result_kind_of(mapping(get_path(job, "spec", "algorithm"))),
    )


def _volume_path(folder: object) -> VolumePath | None:
    claim = text(get_path(folder, "claimName"))
    return VolumePath(claim, text(get_path(folder, "path"))) if claim else None
