"""What of a local run may be changed, and when. Pure."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kubealign.client.errors import JobInvalid
from kubealign.local.spec_change import changes
from kubealign.spec.errors import SpecError, SpecErrors, shown
from kubealign.spec.job import AlignmentJob
from kubealign.spec.load import job_of_value

#: What a site itself says of a job.
_SITE_METADATA = ("uid", "creationTimestamp", "generation", "resourceVersion", "deletionTimestamp")


def job_of(document: Mapping[str, Any], folder: Path | None) -> AlignmentJob:
    """The job of a document, without what a site says of it. File paths in it are made absolute from
    `folder`. Raises JobInvalid with everything that is wrong."""
    metadata = document.get("metadata")
    plain = {name: value for name, value in document.items() if name != "status"}
    if isinstance(metadata, Mapping):
        plain["metadata"] = {name: held for name, held in metadata.items() if name not in _SITE_METADATA}
    try:
        return job_of_value(plain, folder)
    except SpecErrors as errors:
        raise JobInvalid(str(errors), errors.errors) from None
    except TypeError as error:
        raise JobInvalid(f"the job is no JSON document: {error}") from None


def refuse_other_place(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """What names a job stays. Raises JobInvalid."""
    for place in (("apiVersion",), ("kind",), ("metadata", "name"), ("metadata", "namespace")):
        old, new = _at(before, place), _at(after, place)
        if old != new:
            error = SpecError("cannot be changed: submit another job", ".".join(place), shown(new))
            raise JobInvalid(str(error), [error])


def refuse_other_job(before: AlignmentJob, after: AlignmentJob) -> None:
    """What the job learns stays. Raises JobInvalid, naming the fields."""
    differing = changes(before, after)
    if differing:
        message = "cannot be changed once the job exists: submit another one"
        errors = [
            SpecError(message, field, held[:-1])
            for field, _, held in (text.partition(" (") for text in differing)
        ]
        raise JobInvalid("\n".join(map(str, errors)), errors)


def run_fields(before: AlignmentJob, after: AlignmentJob) -> list[str]:
    """The changed fields of the spec that a runner which has begun does not read again."""
    return sorted(_differing(_spec(before), _spec(after)))


def _spec(job: AlignmentJob) -> dict[str, Any]:
    held: dict[str, Any] = json.loads(job.spec.model_dump_json(by_alias=True))
    held.pop("suspend", None)
    return held


def _differing(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[str]:
    for name in old.keys() | new.keys():
        if old.get(name) != new.get(name):
            yield f"spec.{name}"


def _at(document: Mapping[str, Any], place: tuple[str, ...]) -> Any:
    held: Any = document
    for name in place:
        held = held.get(name) if isinstance(held, Mapping) else None
    return held
