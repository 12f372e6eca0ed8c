"""A job of the API as the spec's models, or what is wrong with it."""

import json
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from kubealign.roles import Process, roles
from kubealign.spec.dependencies import dependencies
from kubealign.spec.errors import SpecError
from kubealign.spec.explain import explain
from kubealign.spec.job import AlignmentJob
from kubealign.spec.paths import dotted
from kubealign_operator.render.reading import labels, mapping

_TOLD = 5


class InvalidJob(ValueError):
    """The job cannot be run as it is written; the message names the fields and the remedies."""


def parse(job: Mapping[str, Any]) -> AlignmentJob:
    """Raises InvalidJob. Of the metadata only what kubealign reads: Kubernetes may have more to say there."""
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
        raise InvalidJob(f"the job is no JSON: {error}") from error
    try:
        return AlignmentJob.model_validate_json(text, strict=True, by_alias=True, by_name=False)
    except ValidationError as error:
        raise InvalidJob(_told(error)) from error


def processes_of(job: Mapping[str, Any]) -> tuple[Process, ...]:
    """The job's processes; none when it is invalid."""
    try:
        return roles(parse(job))
    except InvalidJob:
        return ()


def dependencies_of(job: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of the jobs whose results this one reads; none when it is invalid."""
    try:
        return tuple(sorted(dependencies(parse(job))))
    except InvalidJob:
        return ()


def _told(error: ValidationError) -> str:
    found = []
    for details in error.errors(include_url=False):
        message, held = explain(details, AlignmentJob)
        found.append(str(SpecError(message, dotted(details["loc"]), held)))
    more = len(found) - _TOLD
    return "; ".join(found[:_TOLD]) + (f"; and {more} more" if more > 0 else "")
