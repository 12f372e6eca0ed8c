"""Forks of a job: new jobs that start from one of its checkpoints, with some fields changed. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kubealign.spec.changes.continuation import continuation_problems, continuation_reason
from kubealign.spec.changes.differences import FieldDifference, field_differences
from kubealign.spec.errors import SpecError, SpecErrors, format_value
from kubealign.spec.job import AlignmentJob
from kubealign.spec.loading.loader import job_from_document

#: Annotation of a fork with the fields that differ from its parent's, one a line.
CHANGES_ANNOTATION = "kubealign.dev/fork-changes"
_METADATA = ("namespace", "labels", "annotations")
_OWN_ANNOTATIONS = ("kubealign.dev/", "kubectl.kubernetes.io/")
#: Fields that every fork sets for itself.
_OWN_FIELDS = ("spec.checkpoint.from", "spec.suspend")


@dataclass(frozen=True)
class ForkedJob:
    """A fork. changes: its fields that differ from the parent's, defaults filled in."""

    job: AlignmentJob
    parent: str
    step: int
    changes: tuple[FieldDifference, ...]

    def to_document(self) -> dict[str, Any]:
        """Return the description of the fork as a JSON-compatible document."""
        return {
            "name": self.job.name,
            "parent": self.parent,
            "step": self.step,
            "firstStep": self.step + 1,
            "changes": [
                {"field": change.path, "before": change.before, "now": change.now} for change in self.changes
            ],
        }


def fork_job(resource: Mapping[str, Any], name: str, step: int, overrides: Sequence[str] = ()) -> ForkedJob:
    """Return the fork of a job from its checkpoint of a step.

    The fork does not take over the parent's address in object storage, which belongs to one job alone.

    Args:
        resource: The parent's document.
        name: metadata.name of the fork.
        step: Step of the parent's checkpoint; the fork's first step is the next one.
        overrides: PATH=VALUE, as of `kubealign run --set`.

    Raises:
        SpecErrors: A value is invalid, a field must be the parent's, or no step is left to train. All
            errors, each with its field, its value and the reason.
    """
    parent = job_from_document(_document(resource, resource["metadata"]["name"]))
    document = _document(resource, name)
    checkpoint = {
        field: value
        for field, value in (document["spec"].get("checkpoint") or {}).items()
        if field not in ("uri", "from")
    }
    source = {"job": {"name": parent.name}, "step": step}
    document["spec"] = {
        **{field: value for field, value in document["spec"].items() if field != "suspend"},
        "checkpoint": {**checkpoint, "from": source},
    }
    job = job_from_document(document, overrides=overrides)
    errors = list(_refusals(parent, job, name, step))
    if errors:
        raise SpecErrors(errors)
    changes = tuple(
        change
        for change in field_differences(_dump(parent), _dump(job), ("spec",))
        if not change.path.startswith(_OWN_FIELDS)
    )
    if changes:
        annotations = {CHANGES_ANNOTATION: "\n".join(map(str, changes)), **job.metadata.annotations}
        metadata = job.metadata.model_copy(update={"annotations": annotations})
        # Listed as set, so that a dump of the fields that were set includes them.
        metadata.model_fields_set.add("annotations")
        job = job.model_copy(update={"metadata": metadata})
    return ForkedJob(job, parent.name, step, changes)


def _refusals(parent: AlignmentJob, job: AlignmentJob, name: str, step: int) -> list[SpecError]:
    """Return an error for each field that the fork must not change."""
    errors = []
    if job.name != name:
        errors.append(SpecError("is the value of --name: remove it", "metadata.name", job.name))
    elif name == parent.name:
        errors.append(SpecError("is the parent itself: choose another name", "metadata.name", name))
    source = job.spec.checkpoint.source
    if source is None or source.job is None or source.job.name != parent.name or source.step != step:
        message = "names the parent and the step of the fork: remove it"
        errors.append(SpecError(message, "spec.checkpoint.from", format_value(source)))
    uri = job.spec.checkpoint.uri
    if uri is not None and uri == parent.spec.checkpoint.uri:
        message = "belongs to the parent: choose an address of its own for each job"
        errors.append(SpecError(message, "spec.checkpoint.uri", format_value(uri)))
    errors += [
        SpecError(
            f"must be {format_value(problem.before)}, as in {parent.name}: "
            f"{continuation_reason(problem.path)}",
            problem.path,
            format_value(problem.now),
        )
        for problem in continuation_problems(parent, job)
    ]
    total_steps = job.spec.known_steps()
    if not errors and total_steps is not None and total_steps <= step:
        message = f"must be above {step}: it counts the parent's steps too"
        errors.append(SpecError(message, "spec.maxSteps", format_value(job.spec.max_steps)))
    return errors


def _document(resource: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the document without what a backend has added, under another name."""
    metadata = {field: resource["metadata"][field] for field in _METADATA if field in resource["metadata"]}
    if "annotations" in metadata:
        metadata["annotations"] = {
            key: text for key, text in metadata["annotations"].items() if not key.startswith(_OWN_ANNOTATIONS)
        }
    return {
        "apiVersion": resource["apiVersion"],
        "kind": resource["kind"],
        "metadata": {"name": name, **metadata},
        "spec": dict(resource["spec"]),
    }


def _dump(job: AlignmentJob) -> dict[str, Any]:
    return job.spec.model_dump(mode="json", by_alias=True)
