"""Routes for the processes, events and logs of a job."""

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from kubealign.client.records import LogLine
from kubealign_dashboard.api import serializers
from kubealign_dashboard.api.models import EventItem, EventList, ProcessList
from kubealign_dashboard.api.openapi import error_responses, stream_response, success_response
from kubealign_dashboard.api.routes.jobs import JOB
from kubealign_dashboard.streams.streaming_response import LiveStreamResponse, StreamFormat
from kubealign_dashboard.web.authorization import AuthorizeJob, JobRequestContext
from kubealign_dashboard.web.json_response import encode, json_response
from kubealign_dashboard.web.parameters import API_PREFIX, Seconds

router = APIRouter(prefix=API_PREFIX, tags=["processes"])

NDJSON = "application/x-ndjson"
# Empty lines keep proxies from closing an idle connection.
_LOG_FORMAT = StreamFormat(NDJSON, b"\n")
_NAME = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
_LINES = stream_response(
    NDJSON,
    "One JSON object per line: process and text.",
    {"type": "string"},
    '{"process":"driver","text":"step 1"}\n',
)


@router.get(
    JOB + "/roles",
    response_class=Response,
    responses=success_response(ProcessList, "The processes of the job.") | error_responses(404),
    summary="Read the processes of a job",
)
async def roles(context: Annotated[JobRequestContext, Depends(AuthorizeJob("list", "pods"))]) -> Response:
    """Return the processes with their last heartbeats."""
    await context.reader.get(context.ref)
    return json_response({"items": serializers.process_items(await context.reader.processes(context.ref))})


@router.get(
    JOB + "/events",
    response_model=EventList,
    responses=error_responses(404),
    summary="Read the events of a job",
)
async def events(context: Annotated[JobRequestContext, Depends(AuthorizeJob("list", "events"))]) -> Any:
    """Return the events, oldest first."""
    await context.reader.get(context.ref)
    return EventList(
        items=[
            EventItem(
                time=event.time,
                type=event.type,
                reason=event.reason,
                message=event.message,
                count=event.count,
            )
            for event in await context.caller_backend.events(context.ref)
        ]
    )


@router.get(
    JOB + "/logs",
    response_class=Response,
    responses=_LINES | error_responses(404),
    summary="Read the logs of a job's processes",
)
async def logs(
    context: Annotated[JobRequestContext, Depends(AuthorizeJob("get", "pods/log"))],
    request: Request,
    role: Annotated[
        str | None,
        Query(max_length=63, pattern=_NAME, description="Only processes of this role.", examples=["driver"]),
    ] = None,
    process: Annotated[
        str | None,
        Query(max_length=253, pattern=_NAME, description="Only this process.", examples=["rollout-0"]),
    ] = None,
    tail: Annotated[
        int, Query(ge=0, le=100_000, description="The last lines of each process.", examples=[200])
    ] = 200,
    follow: Annotated[
        bool,
        Query(
            description="Stream new lines until the job has finished or the caller disconnects.",
            examples=[False],
        ),
    ] = False,
    seconds: Seconds = None,
) -> Response:
    """Return log lines as newline-delimited JSON, each with the process that wrote it."""
    await context.reader.get(context.ref)
    lines = context.caller_backend.logs(context.ref, process=process, role=role, follow=follow, tail=tail)

    async def check() -> None:
        await context.authorize("get", context.ref.namespace, resource="pods/log")

    return LiveStreamResponse(
        _encode_lines(lines),
        _LOG_FORMAT,
        hub=request.app.state.hub,
        context=context,
        check=check,
        seconds=seconds,
    )


async def _encode_lines(lines: AsyncIterator[LogLine]) -> AsyncIterator[bytes]:
    async for line in lines:
        yield encode({"process": line.process, "text": line.text}) + b"\n"
