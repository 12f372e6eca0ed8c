"""Routes that list, search and read jobs."""

from dataclasses import replace
from enum import StrEnum
from typing import Annotated, TypeAlias

from fastapi import APIRouter, Depends, Query, Response

from kubealign.client.errors import Forbidden, JobInvalid
from kubealign.client.records import ListQuery
from kubealign.spec.errors import SpecError
from kubealign.spec.status import JobPhase
from kubealign_dashboard.api import serializers
from kubealign_dashboard.api.models import JobDocument, JobDocumentList
from kubealign_dashboard.api.openapi import error_responses, success_response
from kubealign_dashboard.web.authorization import (
    AnyRequestContext,
    AuthorizeNamespace,
    ReadableJob,
    RequestContext,
)
from kubealign_dashboard.web.json_response import json_response
from kubealign_dashboard.web.parameters import API_PREFIX, Namespace

router = APIRouter(prefix=API_PREFIX, tags=["jobs"])

JOBS = "/namespaces/{namespace}/alignmentjobs"
JOB = JOBS + "/{name}"


class SortOrder(StrEnum):
    """Sort order of a list; with a leading hyphen: descending."""

    NAME = "name"
    NAME_DOWN = "-name"
    CREATED = "created"
    CREATED_DOWN = "-created"
    PHASE = "phase"
    PHASE_DOWN = "-phase"
    STEP = "step"
    STEP_DOWN = "-step"
    REWARD = "reward"
    REWARD_DOWN = "-reward"


_Algorithm: TypeAlias = Annotated[str, Query(pattern=r"^[A-Za-z][A-Za-z0-9]{0,62}$")]


def job_query(
    limit: Annotated[int, Query(ge=1, le=500, description="Jobs on a page.", examples=[50])] = 50,
    continue_: Annotated[
        str,
        Query(
            alias="continue",
            max_length=4096,
            description="`metadata.continue` of the previous page.",
            examples=[""],
        ),
    ] = "",
    label_selector: Annotated[
        str,
        Query(
            alias="labelSelector",
            max_length=4096,
            description="A label selector, as for kubectl -l.",
            examples=["team=maths,!old"],
        ),
    ] = "",
    search: Annotated[
        str, Query(max_length=253, description="Part of the name, case-insensitive.", examples=["sum"])
    ] = "",
    phase: Annotated[
        list[JobPhase],
        Query(max_length=16, description="Only jobs in one of these phases.", examples=[["Running"]]),
    ] = [],  # noqa: B006 (FastAPI copies it)
    algorithm: Annotated[
        list[_Algorithm],
        Query(max_length=64, description="Only jobs with one of these algorithms.", examples=[["ppo"]]),
    ] = [],  # noqa: B006
    sort: Annotated[SortOrder, Query(examples=["-created"])] = SortOrder.CREATED_DOWN,
) -> ListQuery:
    """Build the query from the parameters."""
    return ListQuery(
        label_selector=label_selector,
        search=search,
        phases=frozenset(map(str, phase)),
        algorithms=frozenset(algorithm),
        sort=str(sort),
        limit=limit,
        after=continue_,
    )


JobQuery = Annotated[ListQuery, Depends(job_query)]
_PAGE = success_response(JobDocumentList, "A page of jobs.") | error_responses()


@router.get(
    "/alignmentjobs", responses=_PAGE, response_class=Response, summary="List the jobs of every namespace"
)
async def list_all(context: AnyRequestContext, query: JobQuery) -> Response:
    """List the jobs of all namespaces whose jobs the caller may list."""
    visible_ones = await visible_namespaces(context)
    if visible_ones is None:
        return await _page(context, query)
    if not visible_ones:
        raise Forbidden(f"{context.caller.name} may list the jobs of no namespace")
    return await _page(context, replace(query, namespaces=visible_ones))


@router.get(JOBS, responses=_PAGE, response_class=Response, summary="List the jobs of a namespace")
async def list_some(
    context: Annotated[RequestContext, Depends(AuthorizeNamespace("list"))],
    namespace: Namespace,
    query: JobQuery,
) -> Response:
    """List the jobs of a namespace, newest first unless `sort` says otherwise."""
    return await _page(context, replace(query, namespace=namespace))


@router.get(
    JOB,
    responses=success_response(JobDocument, "The job.") | error_responses(404),
    response_class=Response,
    summary="Read a job",
)
async def read(context: ReadableJob) -> Response:
    """Return the job with its spec and status."""
    return json_response(serializers.job_document(await context.reader.get(context.ref)))


async def visible_namespaces(context: RequestContext) -> frozenset[str] | None:
    """Return the namespaces whose jobs the caller may list; None: all."""
    try:
        await context.authorize("list", None)
    except Forbidden:
        return frozenset(await context.access.namespaces(context.caller))
    return None


async def _page(context: RequestContext, query: ListQuery) -> Response:
    try:
        page = await context.reader.list(query)
    except JobInvalid as error:
        raise JobInvalid(str(error), [_query_parameter(field) for field in error.errors]) from None
    # Enforced here as well, independent of how a reader interprets its query.
    allowed = query.namespaces if query.namespace is None else {query.namespace}
    if allowed:
        page = replace(page, jobs=[job for job in page.jobs if job.namespace in allowed])
    return json_response(serializers.job_list(page, None if query.after else 0))


def _query_parameter(place: SpecError) -> SpecError:
    """Name the field as the parameter that was sent."""
    return replace(place, path="continue") if place.path == "after" else place
