"""Validates a job from the API: parses it into the spec's models and collects its errors."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ValidationError

from kubealign.labels import PREBUILT_WORKLOAD_LABEL, QUEUE_LABEL
from kubealign.roles import process_count
from kubealign.spec.dependencies import parent_name, predecessors, result_references
from kubealign.spec.errors import SpecError, format_value
from kubealign.spec.job import AlignmentJob
from kubealign.spec.loading.error_messages import error_message
from kubealign.spec.paths import DocumentPath, format_path
from kubealign.spec.pods.template import PodTemplate
from kubealign.spec.sections.data import DataSource, HuggingFaceDataset
from kubealign.spec.sections.lifecycle import ManagedBy
from kubealign.spec.sections.models import Model, TokenizerSource
from kubealign.spec.sections.rewards import FileFunction
from kubealign_operator.kube_views.lenient_json import labels, mapping
from kubealign_operator.kube_views.spec_search import spec_parts

_PATH_FIELDS: tuple[tuple[type[BaseModel], str], ...] = (
    (Model, "path"),
    (DataSource, "path"),
    (DataSource, "paths"),
    (TokenizerSource, "path"),
    (FileFunction, "path"),
)
_MAX_ERRORS = 5


class InvalidJob(ValueError):
    """The job's spec is invalid; the message names the fields and the remedies."""


def parse_job(job: Mapping[str, Any]) -> AlignmentJob:
    """Parse a job. Only the metadata that kubealign reads is validated: Kubernetes may allow more.

    Raises:
        InvalidJob: The spec is invalid.
    """
    metadata = mapping(job.get("metadata"))
    document = {
        "metadata": {
            **{name: metadata[name] for name in ("name", "namespace") if name in metadata},
            "labels": labels(metadata.get("labels")),
            "annotations": labels(metadata.get("annotations")),
        },
        **({"spec": job["spec"]} if "spec" in job else {}),
    }
    try:
        text = json.dumps(document)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidJob(f"the job is not JSON: {error}") from error
    try:
        return AlignmentJob.model_validate_json(text, strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        raise InvalidJob(_format_errors(error)) from error


def size_error(job: AlignmentJob, max_processes: int) -> str:
    """Return why the job is too large for this operator; empty: it is not."""
    count = process_count(job)
    if count <= max_processes:
        return ""
    return (
        f"spec asks for {count} processes: at most {max_processes} are allowed in one job of this cluster "
        "(jobs.maxProcesses of the Helm chart); lower replicas, ranks or tensorParallel"
    )


def cluster_errors(job: AlignmentJob) -> Iterator[SpecError]:
    """Yield everything that prevents the job from running in a cluster."""
    if job.spec.checkpoint.volume is None:
        remedy = "is required in a cluster: name a PersistentVolumeClaim that every pod of the job can write"
        yield SpecError(remedy, "spec.checkpoint.volume")
    for kind, field in _PATH_FIELDS:
        yield from _relative_path_errors(job, kind, field, "name an absolute path in the image, or a volume")
    yield from _relative_path_errors(
        job, HuggingFaceDataset, "name", "name a data set of the hub, or a volume"
    )
    source = job.spec.checkpoint.source
    if source is not None and source.path is not None:
        remedy = "is a folder on one machine: name a job, or a volume and the run directory in it"
        yield SpecError(remedy, "spec.checkpoint.from.path", format_value(source.path))
    if parent_name(job) == job.name:
        remedy = "is the job itself: name another job"
        yield SpecError(remedy, "spec.checkpoint.from.job.name", format_value(job.name))
    for path, name in result_references(job):
        if name == job.name:
            yield SpecError("is the job itself: name another job", format_path(path), format_value(name))


def queue_errors(job: AlignmentJob, *, uses_kueue: bool) -> Iterator[SpecError]:
    """Yield an error for each label of Kueue that would have no effect."""
    for label_name, kind in ((QUEUE_LABEL, "queue"), (PREBUILT_WORKLOAD_LABEL, "Workload")):
        value = job.metadata.labels.get(label_name)
        if value and not uses_kueue:
            remedy = (
                f"names a {kind} of Kueue, which this platform does not use: remove the label, or set "
                "kueue.enabled in the Helm chart"
            )
            yield SpecError(remedy, f"metadata.labels[{label_name}]", format_value(value))
    for path, template in spec_parts(job.spec, PodTemplate) if uses_kueue else ():
        metadata = template.metadata
        label = None if metadata is None else (metadata.labels or {}).get(QUEUE_LABEL)
        if label:
            remedy = "would queue single pods: Kueue admits the job as a whole, by its own metadata.labels"
            where = format_path(("spec", *path, "metadata", "labels", QUEUE_LABEL))
            yield SpecError(remedy, where, format_value(label))


def multikueue_errors(job: AlignmentJob, *, uses_kueue: bool) -> Iterator[SpecError]:
    """Yield everything that prevents MultiKueue from running the job in a worker cluster."""
    if not uses_kueue:
        remedy = "needs Kueue, which this platform does not use: set kueue.enabled in the Helm chart"
        yield SpecError(remedy, "spec.managedBy", format_value(ManagedBy.MULTIKUEUE.value))
    elif not job.metadata.labels.get(QUEUE_LABEL):
        remedy = f"needs a LocalQueue of Kueue: name it in the label {QUEUE_LABEL} of the job"
        yield SpecError(remedy, "spec.managedBy", format_value(ManagedBy.MULTIKUEUE.value))
    reference = "is a job of this cluster, whose volumes a worker cluster does not have: name an address, uri"
    for path, name in predecessors(job):
        yield SpecError(reference, format_path(path), format_value(name))


def _relative_path_errors(
    job: AlignmentJob, kind: type[BaseModel], field: str, remedy: str
) -> Iterator[SpecError]:
    for path, part in spec_parts(job.spec, kind):
        for value_path, value in _texts(getattr(part, field), ("spec", *path, field)):
            if value.startswith("/"):
                continue
            if kind is not HuggingFaceDataset or value.startswith((".", "~")):
                message = f"is relative to a file on one machine, and there is none in a cluster: {remedy}"
                yield SpecError(message, format_path(value_path), format_value(value))


def _texts(value: Any, path: DocumentPath) -> Iterator[tuple[DocumentPath, str]]:
    """Yield (path, text) of a text or of each text in a list."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _texts(item, (*path, index))


def _format_errors(error: ValidationError) -> str:
    messages = []
    for details in error.errors(include_url=False):
        message, value = error_message(details, AlignmentJob)
        messages.append(str(SpecError(message, format_path(details["loc"]), value)))
    more = len(messages) - _MAX_ERRORS
    return "; ".join(messages[:_MAX_ERRORS]) + (f"; and {more} more" if more > 0 else "")
