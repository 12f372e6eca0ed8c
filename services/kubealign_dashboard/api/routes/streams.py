"""Routes for live updates as server-sent events."""

from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.exceptions import RequestValidationError

from kubealign.client.errors import Forbidden
from kubealign_dashboard.api.openapi import error_responses, sse_schema, stream_response
from kubealign_dashboard.api.routes.jobs import JOB, visible_namespaces
from kubealign_dashboard.streams.cursor import CURSOR_PATTERN, StreamCursor
from kubealign_dashboard.streams.job_stream import job_stream
from kubealign_dashboard.streams.list_stream import list_stream
from kubealign_dashboard.streams.server_sent_event import KEEP_ALIVE
from kubealign_dashboard.streams.streaming_response import EVENT_STREAM, LiveStreamResponse, StreamFormat
from kubealign_dashboard.web.authorization import AnyRequestContext, AuthorizeJob, JobRequestContext
from kubealign_dashboard.web.parameters import API_PREFIX, Seconds

router = APIRouter(prefix=API_PREFIX, tags=["streams"])

_LIST_POSITION = r"^[0-9a-f]{1,16}:\d{1,19}$"
_NAMESPACE = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
_EVENT_FORMAT = StreamFormat(EVENT_STREAM, KEEP_ALIVE)
_JOB_EVENTS = stream_response(
    EVENT_STREAM,
    "`job`: the job; `metrics`, `samples`, `roles`: {items}; `unreadable`: {kind, reason}; `gone`: {}.",
    sse_schema("job", "metrics", "samples", "roles", "unreadable", "gone"),
    {"event": "metrics", "id": "1763740800000-0,0-0", "data": '{"items":[]}'},
)
_LIST_EVENTS = stream_response(
    EVENT_STREAM,
    "`ready`, `reset`: {}; `jobs`: {items}, jobs; `gone`: {items}, namespace and name of each.",
    sse_schema("ready", "reset", "jobs", "gone"),
    {"event": "jobs", "id": "5f1c09ae:7", "data": '{"items":[]}'},
)


@router.get(
    JOB + "/stream",
    response_class=Response,
    responses=_JOB_EVENTS | error_responses(404),
    summary="Follow a job",
)
async def job(
    context: Annotated[JobRequestContext, Depends(AuthorizeJob("watch"))],
    request: Request,
    last_event_id: Annotated[
        str,
        Query(
            alias="lastEventId",
            pattern=rf"^$|{CURSOR_PATTERN}",
            description=StreamCursor.parse.__doc__,
            examples=["0-0"],
        ),
    ] = "",
    last_event_header: Annotated[
        str,
        Header(
            alias="Last-Event-ID", pattern=rf"^$|{CURSOR_PATTERN}", description="Goes before lastEventId."
        ),
    ] = "",
    seconds: Seconds = None,
) -> Response:
    """Stream the job, then its changes.

    An event's id is METRICS,SAMPLES: the last entries that were sent. A stream that is resumed with it
    loses and repeats nothing. Without an id the stream begins with the first entry that is kept. Samples
    are sent without their tokens. `unreadable`: entries of this kind cannot be read, for this reason; an
    empty reason: they can again. `gone` is the last event.
    """
    record = await context.reader.get(context.ref)
    cursor = _parse_cursor(last_event_header or last_event_id)
    frames = job_stream(
        request.app.state.hub, context.reader, record, cursor, processes=await _may_list_processes(context)
    )

    async def check() -> None:
        await context.authorize("watch", context.ref.namespace, context.ref.name)

    return LiveStreamResponse(
        frames,
        _EVENT_FORMAT,
        hub=request.app.state.hub,
        context=context,
        check=check,
        seconds=seconds,
    )


@router.get(
    "/stream",
    response_class=Response,
    responses=_LIST_EVENTS | error_responses(),
    summary="Follow the list of jobs",
)
async def jobs(
    context: AnyRequestContext,
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
    and `gone`, with namespace and name. `reset`: changes were missed, list again.
    """
    namespaces = await _watched_namespaces(context, namespace)

    async def check() -> None:
        if await _watched_namespaces(context, namespace) != namespaces:
            raise Forbidden("the caller may see other namespaces now")

    return LiveStreamResponse(
        list_stream(request.app.state.hub, namespaces, last_event_header or last_event_id),
        _EVENT_FORMAT,
        hub=request.app.state.hub,
        context=context,
        check=check,
        seconds=seconds,
    )


async def _watched_namespaces(context: AnyRequestContext, namespace: str) -> frozenset[str] | None:
    """Return the namespaces to stream; None: all."""
    if namespace:
        await context.authorize("watch", namespace)
        return frozenset({namespace})
    namespaces = await visible_namespaces(context)
    if namespaces is not None and not namespaces:
        raise Forbidden(f"{context.caller.name} may list the jobs of no namespace")
    return namespaces


async def _may_list_processes(context: JobRequestContext) -> bool:
    try:
        await context.authorize("list", context.ref.namespace, resource="pods")
    except Forbidden:
        return False
    return True


def _parse_cursor(text: str) -> StreamCursor:
    try:
        return StreamCursor.parse(text) if text else StreamCursor()
    except ValueError as error:
        raise RequestValidationError(
            [{"type": "value_error", "loc": ("query", "lastEventId"), "msg": str(error), "input": text}]
        ) from None
