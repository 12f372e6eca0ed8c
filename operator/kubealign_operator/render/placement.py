"""What is wrong with a job that the spec's models cannot know: they serve one machine, too."""

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
    """Everything that keeps the job from running in a cluster."""
    if job.spec.checkpoint.volume is None:
        remedy = "is required in a cluster: name a PersistentVolumeClaim that every pod of the job can write"
        yield SpecError(remedy, "spec.checkpoint.volume")
    for kind in _PATHS:
        yield from _relative(job, kind, "path", "name an absolute path in the image, or a volume")
    yield from _relative(job, HuggingFaceDataset, "name", "name a data set of the hub, or a volume")
    for place, name in references(job):
        if name == job.name:
            yield SpecError("is the job itself: name another job", dotted(place), shown(name))


def _relative(job: AlignmentJob, kind: type[BaseModel], field: str, remedy: str) -> Iterator[SpecError]:
    for place, part in parts(job.spec, kind):
        held = getattr(part, field)
        if not isinstance(held, str) or held.startswith("/"):
            continue
        if kind is not HuggingFaceDataset or held.startswith((".", "~")):
            message = f"is relative to a file on one machine, and there is none in a cluster: {remedy}"
            yield SpecError(message, dotted(("spec", *place, field)), shown(held))
