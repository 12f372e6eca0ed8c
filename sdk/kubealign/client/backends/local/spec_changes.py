"""Rules for changes to a local job: which fields may change, and when. Pure."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kubealign.client.errors import JobInvalid
from kubealign.local.run_dir.spec_diff import forbidden_changes
from kubealign.spec.errors import SpecError, SpecErrors, format_value
from kubealign.spec.job import AlignmentJob
from kubealign.spec.loading.loader import job_from_document

#: Metadata fields set by the backend.
_BACKEND_METADATA = ("uid", "creationTimestamp", "generation", "resourceVersion", "deletionTimestamp")


def parse_job(document: Mapping[str, Any], folder: Path | None) -> AlignmentJob:
    """Parse a document, ignoring the fields set by the backend.

    File paths in it are resolved against `folder`. Raises JobInvalid with all errors.
    """
    metadata = document.get("metadata")
    fields = {name: value for name, value in document.items() if name != "status"}
    if isinstance(metadata, Mapping):
        fields["metadata"] = {name: field for name, field in metadata.items() if name not in _BACKEND_METADATA}
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
    """Return the changed fields of the spec that a running runner does not read again."""
    return sorted(_differing_fields(_spec_document(before), _spec_document(after)))


def _spec_document(job: AlignmentJob) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(job.spec.model_dump_json(by_alias=True))
    document.pop("suspend", None)
    return document


def _differing_fields(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for name in old.keys() | new.keys():
        if old.get(name) != new.get(name):
            yield f"spec.{name}"


def _get_field(document: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = document
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
