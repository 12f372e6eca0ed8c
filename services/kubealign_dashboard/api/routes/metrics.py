"""Routes for a job's metrics and samples."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from kubealign.read_model import STREAM_START
from kubealign_dashboard.api import serializers
from kubealign_dashboard.api.models import SampleList, StepMetricsList
from kubealign_dashboard.api.openapi import error_responses, success_response
from kubealign_dashboard.api.routes.jobs import JOB
from kubealign_dashboard.streams.cursor import latest_entry
from kubealign_dashboard.web.authorization import ReadableJob
from kubealign_dashboard.web.json_response import json_response
from kubealign_dashboard.web.parameters import API_PREFIX, After

router = APIRouter(prefix=API_PREFIX, tags=["metrics"])


@router.get(
    JOB + "/metrics",
    response_class=Response,
    responses=success_response(StepMetricsList, "A page of steps.") | error_responses(404, 502),
    summary="Read a job's metrics",
)
async def metrics(
    context: ReadableJob,
    after: After = STREAM_START,
    limit: Annotated[
        int, Query(ge=1, le=5000, description="Maximum number of steps.", examples=[1000])
    ] = 1000,
) -> Response:
    """Return metrics, oldest first. A step repeated after a rollback appears again, with a higher fence."""
    await context.reader.get(context.ref)
    steps = await context.reader.metrics(context.ref, after, limit)
    return json_response(_page([serializers.step_metrics(step) for step in steps], after))


@router.get(
    JOB + "/samples",
    response_class=Response,
    responses=success_response(SampleList, "A page of samples.") | error_responses(404, 502),
    summary="Read samples of the policy",
)
async def samples(
    context: ReadableJob,
    after: After = STREAM_START,
    limit: Annotated[
        int, Query(ge=1, le=500, description="Maximum number of samples.", examples=[100])
    ] = 100,
    step: Annotated[
        int | None, Query(ge=0, le=2**31 - 1, description="Only samples of this step.", examples=[12])
    ] = None,
    newest: Annotated[bool, Query(description="The last samples, newest first.", examples=[True])] = False,
) -> Response:
    """Return samples, oldest first unless `newest` is true. Some samples of each step are kept."""
    await context.reader.get(context.ref)
    records = await context.reader.samples(context.ref, after, limit, step=step, newest=newest)
    return json_response(_page([serializers.sample(sample) for sample in records], after))


def _page(items: list[dict[str, Any]], after: str) -> dict[str, Any]:
    return {"items": items, "next": latest_entry(after, *(item["entry"] for item in items))}
