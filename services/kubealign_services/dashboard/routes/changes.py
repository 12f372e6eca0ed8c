"""Jobs, made, changed and ended: each with the caller's own rights."""

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
        description="All: check everything, and change nothing.",
        examples=["All"],
    ),
]
_Changing = Annotated[JobDoor, Depends(OnJob("patch"))]


@router.post(
    JOBS,
    status_code=201,
    response_class=Response,
    responses=answers(Resource, "The job, as its site holds it.", 201) | errors(409, *_SENT),
    openapi_extra=body(JSON, component(AlignmentJob), EXAMPLE_JOB),
    summary="Hand in a job",
)
async def create(
    door: Annotated[Door, Depends(InNamespace("create"))],
    namespace: Namespace,
    sent: Annotated[dict[str, Any], Depends(document())],
    dry_run: _DryRun = None,
) -> Response:
    """The body is the whole document; it belongs to the namespace of the address."""
    metadata = sent.get("metadata")
    if isinstance(metadata, dict):
        named = metadata.get("namespace") or namespace
        if named != namespace:
            error = SpecError(f"must be {namespace}, as the address says", "metadata.namespace", shown(named))
            raise JobInvalid(str(error), [error])
        sent = sent | {"metadata": metadata | {"namespace": namespace}}
    record = await door.own.create(sent, dry_run=dry_run is not None)
    here = f"/api/v1/namespaces/{namespace}/alignmentjobs/{record.name}"
    return answer(told.resource(record), 201, {"Location": here})


@router.patch(
    JOB,
    response_class=Response,
    responses=answers(Resource, "The job after the change.") | errors(404, 409, *_SENT),
    openapi_extra=body(MERGE_PATCH, {"type": "object"}, {"metadata": {"labels": {"team": "maths"}}}),
    summary="Change a job",
)
async def patch(door: _Changing, sent: Annotated[dict[str, Any], Depends(document(MERGE_PATCH))]) -> Response:
    """A JSON merge patch (RFC 7386). What cannot be changed, as most of a spec, is refused with why."""
    return answer(told.resource(await door.own.patch(door.ref, sent)))


@router.delete(
    JOB,
    response_class=Response,
    responses=answers(Nothing, "It is gone, or going.") | errors(404, 409),
    summary="Delete a job",
)
async def delete(door: Annotated[JobDoor, Depends(OnJob("delete"))]) -> Response:
    """With all that it owns. In a cluster its volumes stay; a local run's folder goes, with its result."""
    await door.own.delete(door.ref)
    return answer({})


@router.get(
    JOB + "/scale",
    response_model=Scale,
    responses=errors(404, 409),
    summary="Read how many rollout workers a job has",
)
async def read_scale(door: Annotated[JobDoor, Depends(OnJob("get", "alignmentjobs/scale"))]) -> Scale:
    """409 for a job that has none."""
    return _scale(await door.reader.get(door.ref))


@router.put(
    JOB + "/scale",
    response_model=Scale,
    responses=errors(404, 409, *_SENT),
    openapi_extra=body(JSON, component(WantedScale), {"spec": {"replicas": 4}}),
    summary="Have another number of rollout workers",
)
async def scale(
    door: Annotated[JobDoor, Depends(OnJob("patch", "alignmentjobs/scale"))], request: Request
) -> Scale:
    """While the job runs: workers come and go."""
    wanted = await read_as(WantedScale, request)
    return _scale(await door.own.scale(door.ref, wanted.spec.replicas))


@router.put(
    JOB + "/suspend",
    response_class=Response,
    responses=answers(Resource, "The job after the change.") | errors(404, 409, *_SENT),
    openapi_extra=body(JSON, component(Suspension), {"suspend": True}),
    summary="Suspend or resume a job",
)
async def suspend(door: _Changing, request: Request) -> Response:
    """Suspended, it saves, stops and gives everything back; resumed, it goes on from its commit."""
    wanted = await read_as(Suspension, request)
    return answer(told.resource(await door.own.suspend(door.ref, wanted.suspend)))


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
