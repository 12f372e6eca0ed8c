"""Routes for a job's metrics and samples."""

from typing import Annotated, Any

from fastapi import APIRouter, Query, Response

from kubealign.read_model import BEGINNING
from kubealign_services.dashboard import told
from kubealign_services.dashboard.admission import SeeJob
from kubealign_services.dashboard.documentation import answers, errors
from kubealign_services.dashboard.models import Figures, Samples
from kubealign_services.dashboard.parameters import API, After
from kubealign_services.dashboard.routes.jobs import JOB
from kubealign_services.dashboard.streams.cursor import newest
from kubealign_services.dashboard.wire import answer

router = APIRouter(prefix=API, tags=["figures"])


@router.get(
    JOB + "/metrics",
    response_class=Response,
    responses=answers(Figures, "A page of steps.") | errors(404),
    summary="Read a job's metrics",
)
async def metrics(
    door: SeeJob,
    after: After = BEGINNING,
    limit: Annotated[int, Query(ge=1, le=5000, description="Maximum number of steps.", examples=[1000])] = 1000,
) -> Response:
    """Return metrics, oldest first. A step repeated after a rollback appears again, with a higher fence."""
    await door.reader.get(door.ref)
    steps = await door.reader.metrics(door.ref, after, limit)
    return answer(_page([told.step(step) for step in steps], after))


@router.get(
    JOB + "/samples",
    response_class=Response,
    responses=answers(Samples, "A page of samples.") | errors(404),
    summary="Read samples of the policy",
)
async def samples(
    door: SeeJob,
    after: After = BEGINNING,
    limit: Annotated[int, Query(ge=1, le=500, description="Maximum number of samples.", examples=[100])] = 100,
    step: Annotated[
        int | None, Query(ge=0, le=2**31 - 1, description="Only samples of this step.", examples=[12])
    ] = None,
    newest: Annotated[bool, Query(description="The last samples, newest first.", examples=[True])] = False,
) -> Response:
    """Return samples, oldest first unless `newest` is true. Some samples of each step are kept."""
    await door.reader.get(door.ref)
    records = await door.reader.samples(door.ref, after, limit, step=step, newest=newest)
    return answer(_page([told.sample(sample) for sample in records], after))


def _page(items: list[dict[str, Any]], after: str) -> dict[str, Any]:
    return {"items": items, "next": newest(after, *(item["entry"] for item in items))}
