"""Route for the health findings of a job."""

from typing import Any

from fastapi import APIRouter, Request

from kubealign.client.errors import Forbidden
from kubealign_dashboard.api.models import HealthFindingItem, HealthReport
from kubealign_dashboard.api.openapi import error_responses
from kubealign_dashboard.api.recent_steps import RecentSteps
from kubealign_dashboard.api.routes.jobs import JOB
from kubealign_dashboard.web.authorization import ReadableJob
from kubealign_dashboard.web.parameters import API_PREFIX

router = APIRouter(prefix=API_PREFIX, tags=["metrics"])


@router.get(
    JOB + "/health",
    response_model=HealthReport,
    responses=error_responses(404, 502),
    summary="Read health findings",
)
async def health(context: ReadableJob, request: Request) -> Any:
    """Return findings with remedies. Processes that the caller may not see are left out."""
    from kubealign.diagnostics.health import check_health

    recent: RecentSteps = request.app.state.recent_steps
    record = await context.reader.get(context.ref)
    steps = await recent.get(record)
    try:
        await context.authorize("list", context.ref.namespace, resource="pods")
        processes = await context.reader.processes(context.ref)
    except Forbidden:
        processes = []
    return HealthReport(
        items=[
            HealthFindingItem(
                severity=str(finding.severity),
                title=finding.title,
                detail=finding.detail,
                remedy=finding.remedy,
                metric=finding.metric,
                anchor=finding.anchor,
            )
            for finding in check_health(record.resource, steps, processes)
        ]
    )
