"""Jobs cut down, and what one job may know of another."""

from collections.abc import Iterator, Mapping
from typing import Any

from kubealign.spec.dependencies import made_by
from kubealign_operator.render.observed import JobView, VolumeFolder
from kubealign_operator.render.reading import inside, mapping, text

Json = dict[str, Any]

_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


def trimmed(job: Json) -> Json:
    """Without who wrote which field, and without kubectl's copy of the whole."""
    metadata = {name: held for name, held in job["metadata"].items() if name != "managedFields"}
    annotations = metadata.get("annotations")
    if isinstance(annotations, dict) and _APPLIED in annotations:
        metadata["annotations"] = {name: held for name, held in annotations.items() if name != _APPLIED}
    return {**job, "metadata": metadata}


def phase_of(job: Mapping[str, Any]) -> str:
    """status.phase; empty before the first status."""
    return text(inside(job, "status", "phase"))


def needed_jobs(job: Mapping[str, Any]) -> frozenset[str]:
    """The names of the jobs whose results it reads: every `job: {name: NAME}` in its spec."""
    return frozenset(_named(job.get("spec")))


def _named(held: object) -> Iterator[str]:
    if isinstance(held, dict):
        name = inside(held.get("job"), "name")
        if isinstance(name, str):
            yield name
        for value in held.values():
            yield from _named(value)
    elif isinstance(held, list):
        for value in held:
            yield from _named(value)


def job_view(job: Mapping[str, Any]) -> JobView:
    """As a job that depends on it sees it."""
    return JobView(
        name=text(inside(job, "metadata", "name")),
        uid=text(inside(job, "metadata", "uid")),
        phase=phase_of(job),
        message=text(inside(job, "status", "message")),
        volume=_folder(inside(job, "spec", "checkpoint", "volume")),
        result=_folder(inside(job, "status", "result")),
        makes=made_by(mapping(inside(job, "spec", "algorithm"))),
    )


def _folder(held: object) -> VolumeFolder | None:
    claim = text(inside(held, "claimName"))
    return VolumeFolder(claim, text(inside(held, "path"))) if claim else None
