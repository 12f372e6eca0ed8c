"""Rules for changes to a local job: which fields may change, and when. Pure."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kubealign.client.errors import JobInvalid
from kubealign.local.spec_change import changes
from kubealign.spec.errors import SpecError, SpecErrors, shown
from kubealign.spec.job import AlignmentJob
from kubealign.spec.load import job_of_value

#: Metadata fields set by the backend.
_SITE_METADATA = ("uid", "creationTimestamp", "generation", "resourceVersion", "deletionTimestamp")


def job_of(document: Mapping[str, Any], folder: Path | None) -> AlignmentJob:
    """Parse a document, ignoring the fields set by the backend.

    File paths in it are resolved against `folder`. Raises JobInvalid with all errors.
    """
    metadata = document.get("metadata")
    fields = {name: value for name, value in document.items() if name != "status"}
    if isinstance(metadata, Mapping):
        fields["metadata"] = {name: field for name, field in metadata.items() if name not in _SITE_METADATA}
    try:
        return job_of_value(fields, folder)
    except SpecErrors as errors:
        raise JobInvalid(str(errors), errors.errors) from None
    except TypeError as error:
        raise JobInvalid(f"the job is not a JSON document: {error}") from None


def refuse_other_place(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """Check that the identity of the job is unchanged. Raises JobInvalid."""
    for path in (("apiVersion",), ("kind",), ("metadata", "name"), ("metadata", "namespace")):
        old, new = _at(before, path), _at(after, path)
        if old != new:
            error = SpecError("cannot be changed: submit another job", ".".join(path), shown(new))
            raise JobInvalid(str(error), [error])


def refuse_other_job(before: AlignmentJob, after: AlignmentJob) -> None:
    """Check that no field which defines the training has changed. Raises JobInvalid with the fields."""
    changed = changes(before, after)
    if changed:
        message = "cannot be changed once the job exists: submit another one"
        errors = [
            SpecError(message, field, change_text[:-1])
            for field, _, change_text in (text.partition(" (") for text in changed)
        ]
        raise JobInvalid("\n".join(map(str, errors)), errors)


def run_fields(before: AlignmentJob, after: AlignmentJob) -> list[str]:
    """Return the changed fields of the spec that a running runner does not read again."""
    return sorted(_differing(_spec(before), _spec(after)))


def _spec(job: AlignmentJob) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(job.spec.model_dump_json(by_alias=True))
    document.pop("suspend", None)
    return document


def _differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for name in old.keys() | new.keys():
        if old.get(name) != new.get(name):
            yield f"spec.{name}"


def _at(document: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    value: Any = document
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value
