"""What of a job is looked at here before the API server is asked. Pure."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from kubealign.client.errors import Conflict, JobInvalid, NotPossible
from kubealign.client.records import JobRecord
from kubealign.spec.errors import SpecErrors
from kubealign.spec.job import API_VERSION, KIND
from kubealign.spec.load import job_of_value

#: What the API server writes: a job that came from it can be handed in again.
_SERVERS_OWN = (
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "generation",
    "managedFields",
    "resourceVersion",
    "selfLink",
    "uid",
)


def whole(item: Mapping[str, Any]) -> dict[str, Any]:
    """A job of a list: there the API server leaves out what all items have in common."""
    return {"apiVersion": API_VERSION, "kind": KIND, **item}


def checked(resource: Mapping[str, Any], namespace: str) -> dict[str, Any]:
    """The document to hand in, in `namespace` where it names none. Raises JobInvalid with every error."""
    document = {name: value for name, value in resource.items() if name != "status"}
    held = document.get("metadata")
    if isinstance(held, Mapping):
        metadata = {name: value for name, value in held.items() if name not in _SERVERS_OWN}
        document["metadata"] = {"namespace": namespace, **metadata}
    try:
        job_of_value(document)
    except SpecErrors as errors:
        raise JobInvalid(str(errors), errors.errors) from errors
    return document


def ended(job: JobRecord, what: str) -> None:
    """Raises Conflict for a job that has ended: it cannot be `what` any more."""
    if job.phase is not None and job.phase.final:
        raise Conflict(
            f"job {job.ref} cannot be {what}: it has {job.phase.lower()}, and a job that has ended "
            "never runs again. Hand it in under another name"
        )


def scalable(job: JobRecord) -> None:
    """Raises NotPossible for a job without rollout workers, Conflict for one that has ended."""
    ended(job, "scaled")
    try:
        samples = job.job.spec.samples
    except ValidationError:
        # A newer kubealign made it: the API server knows.
        return
    if not samples:
        raise NotPossible(
            f"job {job.ref} ({job.algorithm}) has no rollout workers to scale: it does not sample"
        )
