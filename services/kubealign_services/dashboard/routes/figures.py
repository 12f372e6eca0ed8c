"""What a job says of itself: its figures by step, and what the policy wrote."""

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
    responses=answers(Figures, "Some steps.") | errors(404),
    summary="Read a job's figures",
)
async def metrics(
    door: SeeJob,
    after: After = BEGINNING,
    limit: Annotated[int, Query(ge=1, le=5000, description="At most so many.", examples=[1000])] = 1000,
) -> Response:
    """Oldest first. A step that is done again after a rollback comes again, under a higher fence."""
    await door.reader.get(door.ref)
    held = await door.reader.metrics(door.ref, after, limit)
    return answer(_page([told.step(step) for step in held], after))


@router.get(
    JOB + "/samples",
    response_class=Response,
    responses=answers(Samples, "Some responses.") | errors(404),
    summary="Read what the policy wrote",
)
async def samples(
    door: SeeJob,
    after: After = BEGINNING,
    limit: Annotated[int, Query(ge=1, le=500, description="At most so many.", examples=[100])] = 100,
    step: Annotated[
        int | None, Query(ge=0, le=2**31 - 1, description="Of this step alone.", examples=[12])
    ] = None,
    newest: Annotated[bool, Query(description="The last ones, newest first.", examples=[True])] = False,
) -> Response:
    """Oldest first, unless `newest` is true. Some of each step are kept."""
    await door.reader.get(door.ref)
    held = await door.reader.samples(door.ref, after, limit, step=step, newest=newest)
    return answer(_page([told.sample(sample) for sample in held], after))


def _page(items: list[dict[str, Any]], after: str) -> dict[str, Any]:
    return {"items": items, "next": newest(after, *(item["entry"] for item in items))}
