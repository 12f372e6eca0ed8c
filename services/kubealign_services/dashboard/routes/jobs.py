"""Routes that list, search and read jobs."""

from dataclasses import replace
from enum import StrEnum
from typing import Annotated, TypeAlias

from fastapi import APIRouter, Depends, Query, Response

from kubealign.client.errors import Forbidden, JobInvalid
from kubealign.client.records import ListQuery
from kubealign.spec.errors import SpecError
from kubealign.spec.status import JobPhase
from kubealign_services.dashboard import told
from kubealign_services.dashboard.admission import AnyDoor, Door, InNamespace, SeeJob
from kubealign_services.dashboard.documentation import answers, errors
from kubealign_services.dashboard.models import Resource, ResourceList
from kubealign_services.dashboard.parameters import API, Namespace
from kubealign_services.dashboard.wire import answer

router = APIRouter(prefix=API, tags=["jobs"])

JOBS = "/namespaces/{namespace}/alignmentjobs"
JOB = JOBS + "/{name}"


class Order(StrEnum):
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


def query(
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
        list[JobPhase], Query(max_length=16, description="Only jobs in one of these phases.", examples=[["Running"]])
    ] = [],  # noqa: B006 (FastAPI copies it)
    algorithm: Annotated[
        list[_Algorithm], Query(max_length=64, description="Only jobs with one of these algorithms.", examples=[["ppo"]])
    ] = [],  # noqa: B006
    sort: Annotated[Order, Query(examples=["-created"])] = Order.CREATED_DOWN,
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


Wanted = Annotated[ListQuery, Depends(query)]
_PAGE = answers(ResourceList, "A page of jobs.") | errors()


@router.get(
    "/alignmentjobs", responses=_PAGE, response_class=Response, summary="List the jobs of every namespace"
)
async def list_all(door: AnyDoor, wanted: Wanted) -> Response:
    """List the jobs of all namespaces whose jobs the caller may list."""
    visible_ones = await visible(door)
    if visible_ones is None:
        return await _page(door, wanted)
    if not visible_ones:
        raise Forbidden(f"{door.caller.name} may list the jobs of no namespace")
    return await _page(door, replace(wanted, namespaces=visible_ones))


@router.get(JOBS, responses=_PAGE, response_class=Response, summary="List the jobs of a namespace")
async def list_some(
    door: Annotated[Door, Depends(InNamespace("list"))], namespace: Namespace, wanted: Wanted
) -> Response:
    """List the jobs of a namespace, newest first unless `sort` says otherwise."""
    return await _page(door, replace(wanted, namespace=namespace))


@router.get(
    JOB,
    responses=answers(Resource, "The job.") | errors(404),
    response_class=Response,
    summary="Read a job",
)
async def read(door: SeeJob) -> Response:
    """Return the job with its spec and status."""
    return answer(told.resource(await door.reader.get(door.ref)))


async def visible(door: Door) -> frozenset[str] | None:
    """Return the namespaces whose jobs the caller may list; None: all."""
    try:
        await door.allow("list", None)
    except Forbidden:
        return frozenset(await door.access.namespaces(door.caller))
    return None


async def _page(door: Door, wanted: ListQuery) -> Response:
    try:
        page = await door.reader.list(wanted)
    except JobInvalid as error:
        raise JobInvalid(str(error), [_parameter(field) for field in error.errors]) from None
    # Enforced here as well, independent of how a reader interprets its query.
    allowed = wanted.namespaces if wanted.namespace is None else {wanted.namespace}
    if allowed:
        page = replace(page, jobs=[job for job in page.jobs if job.namespace in allowed])
    return answer(told.page(page, None if wanted.after else 0))


def _parameter(place: SpecError) -> SpecError:
    """Name the field as the parameter that was sent."""
    return replace(place, path="continue") if place.path == "after" else place
