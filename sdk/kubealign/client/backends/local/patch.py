"""Checks a change to a local job, and plans the actions of a merge patch. Pure."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kubealign.client.backends.replicas import replicas_by_group, without_replicas
from kubealign.client.errors import Conflict, JobInvalid
from kubealign.client.records import JobRecord
from kubealign.kube.merge_patch import apply_merge_patch
from kubealign.local.run_dir.spec_diff import forbidden_changes
from kubealign.spec.errors import SpecError, SpecErrors, format_value
from kubealign.spec.job import AlignmentJob
from kubealign.spec.loading.loader import job_from_document
from kubealign.spec.status import JobPhase

#: Metadata fields set by the backend.
_BACKEND_METADATA = ("uid", "creationTimestamp", "generation", "resourceVersion", "deletionTimestamp")
#: Phases in which no runner has read the job.
_IDLE_PHASES = (JobPhase.PENDING, JobPhase.SUSPENDED)


def parse_job(document: Mapping[str, Any], folder: Path | None) -> AlignmentJob:
    """Parse a document, ignoring the fields set by the backend.

    File paths in it are resolved against `folder`. Raises JobInvalid with all errors.
    """
    metadata = document.get("metadata")
    fields = {name: value for name, value in document.items() if name != "status"}
    if isinstance(metadata, Mapping):
        fields["metadata"] = {
            name: field for name, field in metadata.items() if name not in _BACKEND_METADATA
        }
    try:
        return job_from_document(fields, folder)
    except SpecErrors as errors:
        raise JobInvalid(str(errors), errors.errors) from None
    except TypeError as error:
        raise JobInvalid(f"the job is not a JSON document: {error}") from None


def check_identity_unchanged(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Check that the identity of the job is unchanged. Raises JobInvalid."""
    for path in (("apiVersion",), ("kind",), ("metadata", "name"), ("metadata", "namespace")):
        old, new = _get_field(before, path), _get_field(after, path)
        if old != new:
            error = SpecError("cannot be changed: submit another job", ".".join(path), format_value(new))
            raise JobInvalid(str(error), [error])


def check_training_unchanged(before: AlignmentJob, after: AlignmentJob) -> None:
    """Check that no field which defines the training has changed. Raises JobInvalid with the fields."""
    changed = forbidden_changes(before, after)
    if changed:
        message = "cannot be changed once the job exists: submit another one"
        errors = [
            SpecError(message, field, change_text[:-1])
            for field, _, change_text in (text.partition(" (") for text in changed)
        ]
        raise JobInvalid("\n".join(map(str, errors)), errors)


def changed_spec_fields(before: AlignmentJob, after: AlignmentJob) -> list[str]:
    """Return the changed fields of the spec that a running runner does not read again: all but the numbers of
    workers.
    """
    return sorted(_differing_fields(_spec_document(before), _spec_document(after)))


def _spec_document(job: AlignmentJob) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(job.spec.model_dump_json(by_alias=True))
    document.pop("suspend", None)
    return without_replicas(job, document)


def _differing_fields(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for name in old.keys() | new.keys():
        if old.get(name) != new.get(name):
            yield f"spec.{name}"


def _get_field(document: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = document
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


@dataclass(frozen=True)
class PatchPlan:
    """Actions of a patch. None means unchanged."""

    #: The full desired job.
    job: AlignmentJob
    #: Elastic group -> its new number of workers, for those that change.
    scaled: Mapping[str, int] = field(default_factory=dict)
    suspended: bool | None = None


def plan_patch(record: JobRecord, patch: Mapping[str, Any], folder: Path) -> PatchPlan:
    """Plan the actions of a patch. File paths in the patch are resolved against `folder`.

    Raises:
        JobInvalid: The patch changes an immutable field.
        Conflict: The change is not allowed now, or the patch is based on an older version.
    """
    before = {name: value for name, value in record.resource.items() if name != "status"}
    after = apply_merge_patch(before, {name: value for name, value in patch.items() if name != "status"})
    check_identity_unchanged(before, after)
    expected_version = (patch.get("metadata") or {}).get("resourceVersion")
    if expected_version is not None and expected_version != record.metadata.get("resourceVersion"):
        raise Conflict(f"{record.ref} has changed in the meantime: read it again, then change it")
    old, new = parse_job(before, None), parse_job(after, folder)
    check_training_unchanged(old, new)
    _check_phase_allows(record, old, new)
    before_scaling, suspended = replicas_by_group(old), new.spec.suspend
    scaled = {
        group: count for group, count in replicas_by_group(new).items() if count != before_scaling.get(group)
    }
    return PatchPlan(
        job=new,
        scaled=scaled,
        suspended=None if suspended == old.spec.suspend else suspended,
    )


def _check_phase_allows(record: JobRecord, old: AlignmentJob, new: AlignmentJob) -> None:
    phase = record.phase
    if phase is not None and phase.is_final and old.spec != new.spec:
        raise Conflict(f"{record.ref} has finished ({phase}): its spec can no longer be changed")
    if phase in _IDLE_PHASES:
        return
    changed_fields = changed_spec_fields(old, new)
    if changed_fields:
        raise Conflict(
            f"{record.ref} is {phase}, and reads {', '.join(changed_fields)} when it starts: suspend it first"
        )
