"""Reduced jobs, and the view that one job has of another."""

from collections.abc import Iterator, Mapping
from typing import Any

from kubealign.spec.dependencies import made_by
from kubealign_operator.render.observed import JobView, VolumeFolder
from kubealign_operator.render.reading import inside, mapping, text

Json = dict[str, Any]

_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def trimmed(job: Json) -> Json:
    """Remove managedFields and kubectl's last-applied annotation."""
    metadata = {name: value for name, value in job["metadata"].items() if name != "managedFields"}
    annotations = metadata.get("annotations")
    if isinstance(annotations, dict) and _APPLIED in annotations:
        metadata["annotations"] = {name: value for name, value in annotations.items() if name != _APPLIED}
    return {**job, "metadata": metadata}


def phase_of(job: Mapping[str, Any]) -> str:
    """Return status.phase; empty before the first status."""
    return text(inside(job, "status", "phase"))


def needed_jobs(job: Mapping[str, Any]) -> frozenset[str]:
    """Return the names of the jobs whose results a job reads: every `job: {name: NAME}` in its spec."""
    return frozenset(_named(job.get("spec")))


def _named(node: object) -> Iterator[str]:
    if isinstance(node, dict):
        name = inside(node.get("job"), "name")
        if isinstance(name, str):
            yield name
        for value in node.values():
            yield from _named(value)
    elif isinstance(node, list):
        for value in node:
            yield from _named(value)


def job_view(job: Mapping[str, Any]) -> JobView:
    """Return the view that a dependent job has of this job."""
    return JobView(
        name=text(inside(job, "metadata", "name")),
        uid=text(inside(job, "metadata", "uid")),
        phase=phase_of(job),
        message=text(inside(job, "status", "message")),
        volume=_folder(inside(job, "spec", "checkpoint", "volume")),
        result=_folder(inside(job, "status", "result")),
        makes=made_by(mapping(inside(job, "spec", "algorithm"))),
    )


def _folder(folder: object) -> VolumeFolder | None:
    claim = text(inside(folder, "claimName"))
    return VolumeFolder(claim, text(inside(folder, "path"))) if claim else None
