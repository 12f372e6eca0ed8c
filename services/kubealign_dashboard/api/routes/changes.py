"""Routes that create, change and delete jobs, each with the caller's own rights."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from kubealign.client.errors import JobInvalid, NotPossible
from kubealign.client.records import JobRecord
from kubealign.spec.errors import SpecError, format_value
from kubealign.spec.job import AlignmentJob
from kubealign_dashboard.api import serializers
from kubealign_dashboard.api.models import (
    EmptyObject,
    JobDocument,
    ScaleDocument,
    ScaleMetadata,
    ScaleRequest,
    ScaleSpec,
    ScaleStatus,
    SuspendRequest,
)
from kubealign_dashboard.api.openapi import (
    EXAMPLE_JOB,
    error_responses,
    request_body,
    schema_ref,
    success_response,
)
from kubealign_dashboard.api.routes.jobs import JOB, JOBS
from kubealign_dashboard.web.authorization import (
    AuthorizeJob,
    AuthorizeNamespace,
    JobRequestContext,
    RequestContext,
)
from kubealign_dashboard.web.json_response import JSON, json_response
from kubealign_dashboard.web.parameters import API_PREFIX, Namespace
from kubealign_dashboard.web.request_body import MERGE_PATCH, json_object_body, parse_body

router = APIRouter(prefix=API_PREFIX, tags=["changes"])

_BODY_ERRORS = (413, 415)
_DryRun = Annotated[
    str | None,
    Query(
        alias="dryRun",
        pattern="^All$",
        description="All: validate everything without changing anything.",
        examples=["All"],
    ),
]
_PatchableJob = Annotated[JobRequestContext, Depends(AuthorizeJob("patch"))]


@router.post(
    JOBS,
    status_code=201,
    response_class=Response,
    responses=success_response(JobDocument, "The created job.", 201) | error_responses(409, *_BODY_ERRORS),
    openapi_extra=request_body(JSON, schema_ref(AlignmentJob), EXAMPLE_JOB),
    summary="Create a job",
)
async def create(
    context: Annotated[RequestContext, Depends(AuthorizeNamespace("create"))],
    namespace: Namespace,
    document: Annotated[dict[str, Any], Depends(json_object_body())],
    dry_run: _DryRun = None,
) -> Response:
    """Create a job from the complete document. Its namespace is that of the path."""
    metadata = document.get("metadata")
    if isinstance(metadata, dict):
        document_namespace = metadata.get("namespace") or namespace
        if document_namespace != namespace:
            error = SpecError(
                f"must be {namespace}, as in the path", "metadata.namespace", format_value(document_namespace)
            )
            raise JobInvalid(str(error), [error])
        document = document | {"metadata": metadata | {"namespace": namespace}}
    record = await context.caller_backend.create(document, dry_run=dry_run is not None)
    location = f"/api/v1/namespaces/{namespace}/alignmentjobs/{record.name}"
    return json_response(serializers.job_document(record), 201, {"Location": location})


@router.patch(
    JOB,
    response_class=Response,
    responses=success_response(JobDocument, "The job after the change.")
    | error_responses(404, 409, *_BODY_ERRORS),
    openapi_extra=request_body(MERGE_PATCH, {"type": "object"}, {"metadata": {"labels": {"team": "maths"}}}),
    summary="Change a job",
)
async def patch(
    context: _PatchableJob, merge_patch: Annotated[dict[str, Any], Depends(json_object_body(MERGE_PATCH))]
) -> Response:
    """Apply a JSON merge patch (RFC 7386).

    A change of an immutable field, as most of a spec, is rejected with the reason.
    """
    return json_response(
        serializers.job_document(await context.caller_backend.patch(context.ref, merge_patch))
    )


@router.delete(
    JOB,
    response_class=Response,
    responses=success_response(EmptyObject, "Deleted, or being deleted.") | error_responses(404, 409),
    summary="Delete a job",
)
async def delete(context: Annotated[JobRequestContext, Depends(AuthorizeJob("delete"))]) -> Response:
    """Delete the job and everything it owns.

    In a cluster its volumes stay; a local run's directory is deleted with its result.
    """
    await context.caller_backend.delete(context.ref)
    return json_response({})


@router.get(
    JOB + "/scale",
    response_model=ScaleDocument,
    responses=error_responses(404, 409),
    summary="Read how many rollout workers a job has",
)
async def read_scale(
    context: Annotated[JobRequestContext, Depends(AuthorizeJob("get", "alignmentjobs/scale"))],
) -> ScaleDocument:
    """Return the scale; 409 for a job without rollout workers."""
    return _scale_document(await context.reader.get(context.ref))


@router.put(
    JOB + "/scale",
    response_model=ScaleDocument,
    responses=error_responses(404, 409, *_BODY_ERRORS),
    openapi_extra=request_body(JSON, schema_ref(ScaleRequest), {"spec": {"replicas": 4}}),
    summary="Change the number of rollout workers",
)
async def scale(
    context: Annotated[JobRequestContext, Depends(AuthorizeJob("patch", "alignmentjobs/scale"))],
    request: Request,
) -> ScaleDocument:
    """Change the number of rollout workers of a running job."""
    body = await parse_body(ScaleRequest, request)
    return _scale_document(await context.caller_backend.scale(context.ref, body.spec.replicas))


@router.put(
    JOB + "/suspend",
    response_class=Response,
    responses=success_response(JobDocument, "The job after the change.")
    | error_responses(404, 409, *_BODY_ERRORS),
    openapi_extra=request_body(JSON, schema_ref(SuspendRequest), {"suspend": True}),
    summary="Suspend or resume a job",
)
async def suspend(context: _PatchableJob, request: Request) -> Response:
    """Suspend or resume.

    A suspended job saves a checkpoint, stops and releases all resources; it resumes from that checkpoint.
    """
    body = await parse_body(SuspendRequest, request)
    return json_response(
        serializers.job_document(await context.caller_backend.suspend(context.ref, body.suspend))
    )


@router.post(
    JOB + "/retry",
    response_class=Response,
    responses=success_response(JobDocument, "The job after the request.") | error_responses(404, 409),
    summary="Retry a job that has failed",
)
async def retry(context: _PatchableJob) -> Response:
    """Start a failed job again from its last checkpoint, with a new restart budget; 409 for any other job.

    In a cluster the job stays Failed until the pods of the failed attempt are gone.
    """
    return json_response(serializers.job_document(await context.caller_backend.retry(context.ref)))


def _scale_document(record: JobRecord) -> ScaleDocument:
    if not record.job.spec.samples:
        raise NotPossible(f"{record.ref} has no rollout workers: {record.algorithm} does not sample")
    return ScaleDocument(
        metadata=ScaleMetadata(
            name=record.name,
            namespace=record.namespace,
            resource_version=str(record.metadata.get("resourceVersion", "")),
        ),
        spec=ScaleSpec(replicas=record.job.spec.rollout.replicas),
        status=ScaleStatus(replicas=record.status.rollout_replicas or 0),
    )
