"""Client-side checks of a job before a request is sent to the API server. Pure."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from kubealign.client.backends.worker_groups import ROLLOUT
from kubealign.client.errors import Conflict, JobInvalid, NotPossible
from kubealign.client.records import JobRecord
from kubealign.client.retry import not_retryable_message
from kubealign.spec.errors import SpecErrors
from kubealign.spec.job import API_VERSION, KIND
from kubealign.spec.loading.loader import job_from_document
from kubealign.spec.sections.lifecycle import ManagedBy
from kubealign.spec.status import JobPhase

#: Fields set by the API server; they are dropped so that a job that was read can be submitted again.
_SERVER_METADATA = (
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "generation",
    "managedFields",
    "resourceVersion",
    "selfLink",
    "uid",
)


def with_type_meta(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return an item of a job list with apiVersion and kind.

    The API server omits both in list items.
    """
    return {"apiVersion": API_VERSION, "kind": KIND, **item}


def validate_document(resource: Mapping[str, Any], namespace: str) -> dict[str, Any]:
    """Return the document to submit; `namespace` is its default. Raises JobInvalid with all errors."""
    document = {name: value for name, value in resource.items() if name != "status"}
    metadata_value = document.get("metadata")
    if isinstance(metadata_value, Mapping):
        metadata = {name: value for name, value in metadata_value.items() if name not in _SERVER_METADATA}
        document["metadata"] = {"namespace": namespace, **metadata}
    try:
        job_from_document(document)
    except SpecErrors as errors:
        raise JobInvalid(str(errors), errors.errors) from errors
    return document


def check_not_finished(job: JobRecord, action: str) -> None:
    """Raise Conflict for a job that has finished.

    `action` is a past participle for the message, such as scaled.
    """
    if job.phase is JobPhase.FAILED:
        raise Conflict(
            f"job {job.ref} cannot be {action}: it has failed. Once the cause is repaired, "
            f"kubealign retry {job.name} starts it again from its last checkpoint"
        )
    if job.phase is JobPhase.SUCCEEDED:
        raise Conflict(
            f"job {job.ref} cannot be {action}: it has succeeded, and such a job never runs again. Submit it "
            "under another name"
        )


def check_retryable(job: JobRecord) -> None:
    """Raise Conflict for a job that has not failed."""
    if job.phase is not JobPhase.FAILED:
        raise Conflict(not_retryable_message(job.ref, job.phase))


def check_runs_here(job: JobRecord, remedy: str) -> None:
    """Raise NotPossible for a job that MultiKueue runs in another cluster.

    Args:
        remedy: What to do there, such as "read its logs there".
    """
    spec = job.resource.get("spec")
    if isinstance(spec, Mapping) and spec.get("managedBy") == ManagedBy.MULTIKUEUE:
        raise NotPossible(
            f"job {job.ref} runs in a worker cluster of MultiKueue (status.clusterName of its Workload: "
            f"kubectl get workloads -n {job.namespace} -o yaml): {remedy}"
        )


def check_scalable(job: JobRecord, group: str) -> None:
    """Raise NotPossible for a job without such workers, or whose number is fixed, Conflict for one that has
    finished.
    """
    check_not_finished(job, "scaled")
    try:
        spec = job.job.spec
    except ValidationError:
        # The job was created by a newer kubealign version: the API server checks it.
        return
    if group == ROLLOUT and not spec.samples:
        raise NotPossible(
            f"job {job.ref} ({job.algorithm}) has no rollout workers to scale: it does not sample"
        )
