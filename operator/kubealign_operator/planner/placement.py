"""Errors of a job that only matter in a cluster: the spec's models also serve a single machine."""

from collections.abc import Iterator

from pydantic import BaseModel

from kubealign.spec.sections.data import DataSource, HuggingFaceDataset
from kubealign.spec.dependencies import result_references
from kubealign.spec.errors import SpecError, format_value
from kubealign.spec.job import AlignmentJob
from kubealign.spec.sections.models import Model, TokenizerSource
from kubealign.spec.paths import format_path
from kubealign.spec.sections.rewards import FileFunction
from kubealign_operator.kube_views.spec_walk import spec_parts

_PATH_MODELS: tuple[type[BaseModel], ...] = (Model, DataSource, TokenizerSource, FileFunction)


def cluster_errors(job: AlignmentJob) -> Iterator[SpecError]:
    """Yield everything that prevents the job from running in a cluster."""
    if job.spec.checkpoint.volume is None:
        remedy = "is required in a cluster: name a PersistentVolumeClaim that every pod of the job can write"
        yield SpecError(remedy, "spec.checkpoint.volume")
    for kind in _PATH_MODELS:
        yield from _relative_path_errors(job, kind, "path", "name an absolute path in the image, or a volume")
    yield from _relative_path_errors(job, HuggingFaceDataset, "name", "name a data set of the hub, or a volume")
    for path, name in result_references(job):
        if name == job.name:
            yield SpecError("is the job itself: name another job", format_path(path), format_value(name))


def _relative_path_errors(job: AlignmentJob, kind: type[BaseModel], field: str, remedy: str) -> Iterator[SpecError]:
    for path, part in spec_parts(job.spec, kind):
        value = getattr(part, field)
        if not isinstance(value, str) or value.startswith("/"):
            continue
        if kind is not HuggingFaceDataset or value.startswith((".", "~")):
            message = f"is relative to a file on one machine, and there is none in a cluster: {remedy}"
            yield SpecError(message, format_path(("spec", *path, field)), format_value(value))
