"""Errors of a job that only matter in a cluster: the spec's models also serve a single machine."""

from collections.abc import Iterator

from pydantic import BaseModel

from kubealign.spec.data import DataSource, HuggingFaceDataset
from kubealign.spec.dependencies import references
from kubealign.spec.errors import SpecError, shown
from kubealign.spec.job import AlignmentJob
from kubealign.spec.models import Model, TokenizerSource
from kubealign.spec.paths import dotted
from kubealign.spec.rewards import FileFunction
from kubealign_operator.render.parts import parts

_PATHS: tuple[type[BaseModel], ...] = (Model, DataSource, TokenizerSource, FileFunction)


def problems(job: AlignmentJob) -> Iterator[SpecError]:
    """Yield everything that prevents the job from running in a cluster."""
    if job.spec.checkpoint.volume is None:
        remedy = "is required in a cluster: name a PersistentVolumeClaim that every pod of the job can write"
        yield SpecError(remedy, "spec.checkpoint.volume")
    for kind in _PATHS:
        yield from _relative(job, kind, "path", "name an absolute path in the image, or a volume")
    yield from _relative(job, HuggingFaceDataset, "name", "name a data set of the hub, or a volume")
    for path, name in references(job):
        if name == job.name:
            yield SpecError("is the job itself: name another job", dotted(path), shown(name))


def _relative(job: AlignmentJob, kind: type[BaseModel], field: str, remedy: str) -> Iterator[SpecError]:
    for path, part in parts(job.spec, kind):
        value = getattr(part, field)
        if not isinstance(value, str) or value.startswith("/"):
            continue
        if kind is not HuggingFaceDataset or value.startswith((".", "~")):
            message = f"is relative to a file on one machine, and there is none in a cluster: {remedy}"
            yield SpecError(message, dotted(("spec", *path, field)), shown(value))
