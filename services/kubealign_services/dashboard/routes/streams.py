"""Routes for live updates as server-sent events."""

from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.exceptions import RequestValidationError

from kubealign.client.errors import Forbidden
from kubealign_services.dashboard.admission import AnyDoor, JobDoor, OnJob
from kubealign_services.dashboard.documentation import errors, server_sent, stream
from kubealign_services.dashboard.parameters import API, Seconds
from kubealign_services.dashboard.routes.jobs import JOB, visible
from kubealign_services.dashboard.streams.cursor import CURSOR, Cursor
from kubealign_services.dashboard.streams.event import KEEP_ALIVE
from kubealign_services.dashboard.streams.job_stream import job_stream
from kubealign_services.dashboard.streams.list_stream import list_stream
from kubealign_services.dashboard.streams.response import EVENT_STREAM, LongAnswer

router = APIRouter(prefix=API, tags=["streams"])

_LIST_POSITION = r"^[0-9a-f]{1,16}:\d{1,19}$"
_NAMESPACE = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
_JOB_EVENTS = stream(
    EVENT_STREAM,
    "`job`: the job; `metrics`, `samples`, `roles`: {items}; `gone`: {}.",
    server_sent("job", "metrics", "samples", "roles", "gone"),
    {"event": "metrics", "id": "1763740800000-0,0-0", "data": '{"items":[]}'},
)
_LIST_EVENTS = stream(
    EVENT_STREAM,
    "`ready`, `reset`: {}; `jobs`: {items}, jobs; `gone`: {items}, namespace and name of each.",
    server_sent("ready", "reset", "jobs", "gone"),
    {"event": "jobs", "id": "5f1c09ae:7", "data": '{"items":[]}'},
)


@router.get(
    JOB + "/stream",
    response_class=Response,
    responses=_JOB_EVENTS | errors(404, 429),
    summary="Follow a job",
)
async def job(
    door: Annotated[JobDoor, Depends(OnJob("watch"))],
    request: Request,
    last_event_id: Annotated[
        str,
        Query(
            alias="lastEventId", pattern=rf"^$|{CURSOR}", description=Cursor.parse.__doc__, examples=["0-0"]
        ),
    ] = "",
    last_event_header: Annotated[
        str, Header(alias="Last-Event-ID", pattern=rf"^$|{CURSOR}", description="Goes before lastEventId.")
    ] = "",
    seconds: Seconds = None,
) -> Response:
    """Stream the job, then its changes.

    An event's id is METRICS,SAMPLES: the last entries that were sent. A stream that is resumed with it
    loses and repeats
    nothing. Without an id the stream begins with the first entry that is kept. Samples are sent without
    their tokens.
    `gone` is the last event.
    """
    record = await door.reader.get(door.ref)
    cursor = _cursor(last_event_header or last_event_id)
    frames = job_stream(
        request.app.state.hub, door.reader, record, cursor, processes=await _sees_processes(door)
    )

    async def check() -> None:
        await door.allow("watch", door.ref.namespace, door.ref.name)

    return LongAnswer(
        frames,
        EVENT_STREAM,
        hub=request.app.state.hub,
        door=door,
        check=check,
        idle=KEEP_ALIVE,
        seconds=seconds,
    )


@router.get(
    "/stream",
    response_class=Response,
    responses=_LIST_EVENTS | errors(429),
    summary="Follow the list of jobs",
)
async def jobs(
    door: AnyDoor,
    request: Request,
    namespace: Annotated[
        str,
        Query(pattern=rf"^$|{_NAMESPACE}", max_length=63, description="Of this alone.", examples=["default"]),
    ] = "",
    last_event_id: Annotated[
        str, Query(alias="lastEventId", pattern=rf"^$|{_LIST_POSITION}", description="An event's id.")
    ] = "",
    last_event_header: Annotated[
        str,
        Header(
            alias="Last-Event-ID", pattern=rf"^$|{_LIST_POSITION}", description="Goes before lastEventId."
        ),
    ] = "",
    seconds: Seconds = None,
) -> Response:
    """Stream the changes of the job list.

    Open the stream, wait for `ready`, then list: later changes arrive as `jobs`, with the current jobs,
    and `gone`, with
    namespace and name. `reset`: changes were missed, list again.
    """
    namespaces = await _followed(door, namespace)

    async def check() -> None:
        if await _followed(door, namespace) != namespaces:
            raise Forbidden("the caller may see other namespaces now")

    return LongAnswer(
        list_stream(request.app.state.hub, namespaces, last_event_header or last_event_id),
        EVENT_STREAM,
        hub=request.app.state.hub,
        door=door,
        check=check,
        idle=KEEP_ALIVE,
        seconds=seconds,
    )


async def _followed(door: AnyDoor, namespace: str) -> frozenset[str] | None:
    """Return the namespaces to stream; None: all."""
    if namespace:
        await door.allow("watch", namespace)
        return frozenset({namespace})
    namespaces = await visible(door)
    if namespaces is not None and not namespaces:
        raise Forbidden(f"{door.caller.name} may list the jobs of no namespace")
    return namespaces


async def _sees_processes(door: JobDoor) -> bool:
    try:
        await door.allow("list", door.ref.namespace, resource="pods")
    except Forbidden:
        return False
    return True


def _cursor(text: str) -> Cursor:
    try:
        return Cursor.parse(text) if text else Cursor()
    except ValueError as error:
        raise RequestValidationError(
            [{"type": "value_error", "loc": ("query", "lastEventId"), "msg": str(error), "input": text}]
        ) from None
