"""What a job is made of and what happened to it: processes, events, logs."""

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
    "A JSON object a line: the process, and the text.",
    {"type": "string"},
    '{"process":"driver","text":"step 1"}\n',
)


@router.get(
    JOB + "/roles",
    response_class=Response,
    responses=answers(Processes, "Its processes.") | errors(404),
    summary="Read how a job's processes are",
)
async def roles(door: Annotated[JobDoor, Depends(OnJob("list", "pods"))]) -> Response:
    """With what each last said of itself."""
    await door.reader.get(door.ref)
    return answer({"items": told.processes(await door.reader.processes(door.ref))})


@router.get(
    JOB + "/events",
    response_model=Events,
    responses=errors(404),
    summary="Read what happened to a job",
)
async def events(door: Annotated[JobDoor, Depends(OnJob("list", "events"))]) -> Any:
    """Oldest first."""
    await door.reader.get(door.ref)
    return Events(
        items=[
            Event(time=held.time, type=held.type, reason=held.reason, message=held.message, count=held.count)
            for held in await door.own.events(door.ref)
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
        Query(max_length=63, pattern=_NAME, description="Of this role alone.", examples=["driver"]),
    ] = None,
    process: Annotated[
        str | None,
        Query(max_length=253, pattern=_NAME, description="Of this process alone.", examples=["rollout-0"]),
    ] = None,
    tail: Annotated[
        int, Query(ge=0, le=100_000, description="The last lines of each process.", examples=[200])
    ] = 200,
    follow: Annotated[
        bool, Query(description="Go on until the job is over, or the caller has gone.", examples=[False])
    ] = False,
    seconds: Seconds = None,
) -> Response:
    """Each line with the process that wrote it, as it was written."""
    await door.reader.get(door.ref)
    lines = door.own.logs(door.ref, process=process, role=role, follow=follow, tail=tail)

    async def check() -> None:
        await door.allow("get", door.ref.namespace, resource="pods/log")

    # A line that says nothing keeps proxies from closing the connection.
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
