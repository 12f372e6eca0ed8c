"""Route for the health findings of a job."""

from typing import Any

from fastapi import APIRouter, Request

from kubealign.client.errors import Forbidden
from kubealign_services.dashboard.admission import SeeJob
from kubealign_services.dashboard.documentation import errors
from kubealign_services.dashboard.models import Finding, Health
from kubealign_services.dashboard.parameters import API
from kubealign_services.dashboard.recent_steps import RecentSteps
from kubealign_services.dashboard.routes.jobs import JOB

router = APIRouter(prefix=API, tags=["figures"])


@router.get(JOB + "/health", response_model=Health, responses=errors(404), summary="Read health findings")
async def health(door: SeeJob, request: Request) -> Any:
    """Return findings with remedies. Processes that the caller may not see are left out."""
    from kubealign.health import findings

    recent: RecentSteps = request.app.state.recent_steps
    record = await door.reader.get(door.ref)
    steps = await recent.of(record)
    try:
        await door.allow("list", door.ref.namespace, resource="pods")
        processes = await door.reader.processes(door.ref)
    except Forbidden:
        processes = []
    return Health(
        items=[
            Finding(
                severity=str(finding.severity),
                title=finding.title,
                detail=finding.detail,
                remedy=finding.remedy,
                metric=finding.metric,
                anchor=finding.anchor,
            )
            for finding in findings(record.resource, steps, processes)
        ]
    )
