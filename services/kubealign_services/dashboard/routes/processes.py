"""Routes for the processes, events and logs of a job."""

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from kubealign.client.records import LogLine
from kubealign_services.dashboard import told
from kubealign_services.dashboard.admission import JobDoor, OnJob
from kubealign_services.dashboard.documentation import answers, errors, stream
from kubealign_services.dashboard.models import Event, Events, Processes
from kubealign_services.dashboard.parameters import API, Seconds
from kubealign_services.dashboard.routes.jobs import JOB
from kubealign_services.dashboard.streams.response import LongAnswer
from kubealign_services.dashboard.wire import answer, encode

router = APIRouter(prefix=API, tags=["processes"])

NDJSON = "application/x-ndjson"
_NAME = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"
_LINES = stream(
    NDJSON,
    "One JSON object per line: process and text.",
    {"type": "string"},
    '{"process":"driver","text":"step 1"}\n',
)


@router.get(
    JOB + "/roles",
    response_class=Response,
    responses=answers(Processes, "The processes of the job.") | errors(404),
    summary="Read the processes of a job",
)
async def roles(door: Annotated[JobDoor, Depends(OnJob("list", "pods"))]) -> Response:
    """Return the processes with their last heartbeats."""
    await door.reader.get(door.ref)
    return answer({"items": told.processes(await door.reader.processes(door.ref))})


@router.get(
    JOB + "/events",
    response_model=Events,
    responses=errors(404),
    summary="Read the events of a job",
)
async def events(door: Annotated[JobDoor, Depends(OnJob("list", "events"))]) -> Any:
    """Return the events, oldest first."""
    await door.reader.get(door.ref)
    return Events(
        items=[
            Event(time=event.time, type=event.type, reason=event.reason, message=event.message, count=event.count)
            for event in await door.own.events(door.ref)
        ]
    )


@router.get(
    JOB + "/logs",
    response_class=Response,
    responses=_LINES | errors(404, 429),
    summary="Read the logs of a job's processes",
)
async def logs(
    door: Annotated[JobDoor, Depends(OnJob("get", "pods/log"))],
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
        bool, Query(description="Stream new lines until the job has finished or the caller disconnects.", examples=[False])
    ] = False,
    seconds: Seconds = None,
) -> Response:
    """Return log lines as newline-delimited JSON, each with the process that wrote it."""
    await door.reader.get(door.ref)
    lines = door.own.logs(door.ref, process=process, role=role, follow=follow, tail=tail)

    async def check() -> None:
        await door.allow("get", door.ref.namespace, resource="pods/log")

    # Empty lines keep proxies from closing an idle connection.
    return LongAnswer(
        _encoded(lines),
        NDJSON,
        hub=request.app.state.hub,
        door=door,
        check=check,
        idle=b"\n",
        seconds=seconds,
    )


async def _encoded(lines: AsyncIterator[LogLine]) -> AsyncIterator[bytes]:
    async for line in lines:
        yield encode({"process": line.process, "text": line.text}) + b"\n"
