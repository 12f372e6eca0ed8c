"""Routes that create, change and delete jobs, each with the caller's own rights."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from kubealign.client.errors import JobInvalid, NotPossible
from kubealign.client.records import JobRecord
from kubealign.spec.errors import SpecError, shown
from kubealign.spec.job import AlignmentJob
from kubealign_services.dashboard import told
from kubealign_services.dashboard.admission import Door, InNamespace, JobDoor, OnJob
from kubealign_services.dashboard.bodies import MERGE_PATCH, document, read_as
from kubealign_services.dashboard.documentation import EXAMPLE_JOB, answers, body, component, errors
from kubealign_services.dashboard.models import (
    Nothing,
    Resource,
    Scale,
    ScaleMetadata,
    ScaleSpec,
    ScaleStatus,
    Suspension,
    WantedScale,
)
from kubealign_services.dashboard.parameters import API, Namespace
from kubealign_services.dashboard.routes.jobs import JOB, JOBS
from kubealign_services.dashboard.wire import JSON, answer

router = APIRouter(prefix=API, tags=["changes"])

_SENT = (413, 415)
_DryRun = Annotated[
    str | None,
    Query(
        alias="dryRun",
        pattern="^All$",
        description="All: validate everything without changing anything.",
        examples=["All"],
    ),
]
_Changing = Annotated[JobDoor, Depends(OnJob("patch"))]


@router.post(
    JOBS,
    status_code=201,
    response_class=Response,
    responses=answers(Resource, "The created job.", 201) | errors(409, *_SENT),
    openapi_extra=body(JSON, component(AlignmentJob), EXAMPLE_JOB),
    summary="Create a job",
)
async def create(
    door: Annotated[Door, Depends(InNamespace("create"))],
    namespace: Namespace,
    sent: Annotated[dict[str, Any], Depends(document())],
    dry_run: _DryRun = None,
) -> Response:
    """Create a job from the complete document. Its namespace is that of the path."""
    metadata = sent.get("metadata")
    if isinstance(metadata, dict):
        document_namespace = metadata.get("namespace") or namespace
        if document_namespace != namespace:
            error = SpecError(f"must be {namespace}, as in the path", "metadata.namespace", shown(document_namespace))
            raise JobInvalid(str(error), [error])
        sent = sent | {"metadata": metadata | {"namespace": namespace}}
    record = await door.own.create(sent, dry_run=dry_run is not None)
    location = f"/api/v1/namespaces/{namespace}/alignmentjobs/{record.name}"
    return answer(told.resource(record), 201, {"Location": location})


@router.patch(
    JOB,
    response_class=Response,
    responses=answers(Resource, "The job after the change.") | errors(404, 409, *_SENT),
    openapi_extra=body(MERGE_PATCH, {"type": "object"}, {"metadata": {"labels": {"team": "maths"}}}),
    summary="Change a job",
)
async def patch(door: _Changing, sent: Annotated[dict[str, Any], Depends(document(MERGE_PATCH))]) -> Response:
    """Apply a JSON merge patch (RFC 7386). A change of an immutable field, as most of a spec, is rejected
    with the reason.
    """
    return answer(told.resource(await door.own.patch(door.ref, sent)))


@router.delete(
    JOB,
    response_class=Response,
    responses=answers(Nothing, "Deleted, or being deleted.") | errors(404, 409),
    summary="Delete a job",
)
async def delete(door: Annotated[JobDoor, Depends(OnJob("delete"))]) -> Response:
    """Delete the job and everything it owns. In a cluster its volumes stay; a local run's directory is
    deleted with its result.
    """
    await door.own.delete(door.ref)
    return answer({})


@router.get(
    JOB + "/scale",
    response_model=Scale,
    responses=errors(404, 409),
    summary="Read how many rollout workers a job has",
)
async def read_scale(door: Annotated[JobDoor, Depends(OnJob("get", "alignmentjobs/scale"))]) -> Scale:
    """Return the scale; 409 for a job without rollout workers."""
    return _scale(await door.reader.get(door.ref))


@router.put(
    JOB + "/scale",
    response_model=Scale,
    responses=errors(404, 409, *_SENT),
    openapi_extra=body(JSON, component(WantedScale), {"spec": {"replicas": 4}}),
    summary="Change the number of rollout workers",
)
async def scale(
    door: Annotated[JobDoor, Depends(OnJob("patch", "alignmentjobs/scale"))], request: Request
) -> Scale:
    """Change the number of rollout workers of a running job."""
    request_body = await read_as(WantedScale, request)
    return _scale(await door.own.scale(door.ref, request_body.spec.replicas))


@router.put(
    JOB + "/suspend",
    response_class=Response,
    responses=answers(Resource, "The job after the change.") | errors(404, 409, *_SENT),
    openapi_extra=body(JSON, component(Suspension), {"suspend": True}),
    summary="Suspend or resume a job",
)
async def suspend(door: _Changing, request: Request) -> Response:
    """Suspend or resume. A suspended job saves a checkpoint, stops and releases all resources; it resumes
    from that checkpoint.
    """
    request_body = await read_as(Suspension, request)
    return answer(told.resource(await door.own.suspend(door.ref, request_body.suspend)))


def _scale(record: JobRecord) -> Scale:
    if not record.job.spec.samples:
        raise NotPossible(f"{record.ref} has no rollout workers: {record.algorithm} does not sample")
    return Scale(
        metadata=ScaleMetadata(
            name=record.name,
            namespace=record.namespace,
            resource_version=str(record.metadata.get("resourceVersion", "")),
        ),
        spec=ScaleSpec(replicas=record.job.spec.rollout.replicas),
        status=ScaleStatus(replicas=record.status.rollout_replicas or 0),
    )
