"""Routes for the labels that people give to responses of validations, each with the caller's own rights."""

import time
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.exceptions import RequestValidationError

from kubealign.client.errors import NotPossible
from kubealign.client.records import JobRef
from kubealign.human_labels import (
    HumanLabel,
    LabelFormat,
    LabelledResponse,
    Verdict,
    current_labels,
    export_labels,
    label_subject,
)
from kubealign.validation_record import ValidationRecord
from kubealign_dashboard.api import serializers
from kubealign_dashboard.api.models import HumanLabelItem, HumanLabelList, LabelRequest
from kubealign_dashboard.api.openapi import (
    error_responses,
    request_body,
    schema_ref,
    stream_response,
    success_response,
)
from kubealign_dashboard.api.routes.jobs import JOB
from kubealign_dashboard.comparison.pairs import pair_responses
from kubealign_dashboard.web.authorization import AuthorizeJob, JobRequestContext, ReadableJob
from kubealign_dashboard.web.json_response import JSON, json_response
from kubealign_dashboard.web.parameters import API_PREFIX
from kubealign_dashboard.web.request_body import parse_body

router = APIRouter(prefix=API_PREFIX, tags=["labels"])

_JSON_LINES = "application/x-ndjson"
_EXAMPLE = {
    "verdict": "right",
    "reason": "the left one is wrong",
    "promptId": "9f86d081884c7d659a2feaa0c55ad015",
    "step": 100,
    "other": {"namespace": "default", "name": "sums", "step": 200},
}


@router.get(
    JOB + "/labels",
    response_class=Response,
    responses=success_response(HumanLabelList, "The labels.") | error_responses(404),
    summary="Read the labels of a job",
)
async def labels(context: ReadableJob) -> Response:
    """Return the labels that people gave to responses of the job, the last one of each subject."""
    stored = current_labels(await context.caller_backend.labels(context.ref))
    return json_response({"items": [serializers.human_label(label) for label in stored]})


@router.get(
    JOB + "/labels/export",
    response_class=Response,
    responses=stream_response(_JSON_LINES, "JSON lines.", {"type": "string"}, '{"prompt": "2+2=" ...')
    | error_responses(404),
    summary="Export the labels of a job as training rows",
)
async def export(
    context: ReadableJob,
    form: Annotated[
        LabelFormat,
        Query(
            alias="format",
            description="Rows for data.preferences or data.unpaired, or the labels themselves.",
            examples=["preferences"],
        ),
    ] = LabelFormat.PREFERENCES,
) -> Response:
    """Return one JSON object for each label that has a row in the format."""
    text = export_labels(await context.caller_backend.labels(context.ref), form)
    name = f"{context.ref.name}-{form}.jsonl"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(text.encode("utf-8", "replace"), headers=headers, media_type=_JSON_LINES)


@router.post(
    JOB + "/labels",
    status_code=201,
    response_class=Response,
    responses=success_response(HumanLabelItem, "The stored label.", 201)
    | error_responses(404, 409, 413, 415),
    openapi_extra=request_body(JSON, schema_ref(LabelRequest), _EXAMPLE),
    summary="Label a response, or a pair of responses",
)
async def add(
    context: Annotated[JobRequestContext, Depends(AuthorizeJob("patch"))], request: Request
) -> Response:
    """Store a label with the caller's name, the time and the texts. It replaces earlier labels of the same
    subject; the verdict null withdraws them.

    409 when a response is not stored, or only without its middle.
    """
    body = await parse_body(LabelRequest, request)
    left = (context.ref, body.step)
    sides = [left]
    if body.other is not None:
        right = (JobRef(body.other.namespace, body.other.name), body.other.step)
        await context.authorize("get", right[0].namespace, right[0].name)
        sides.append(right)
    records = await _find_responses(context, body.prompt_id, sides)
    if len(records) == 2 and body.verdict in (Verdict.LEFT, Verdict.RIGHT):
        _check_preferable(*records)
    responses = [
        LabelledResponse(ref.namespace, ref.name, step, record.response)
        for (ref, step), record in zip(sides, records, strict=True)
    ]
    label = HumanLabel(
        subject=label_subject(body.prompt_id, *sides),
        verdict=body.verdict,
        author=context.caller.name,
        time=time.time(),
        prompt_id=body.prompt_id,
        prompt=records[0].prompt,
        left=responses[0],
        right=responses[1] if len(responses) > 1 else None,
        reason=body.reason,
    )
    await context.caller_backend.add_label(context.ref, label)
    return json_response(serializers.human_label(label), 201)


async def _find_responses(
    context: JobRequestContext, prompt_id: str, sides: list[tuple[JobRef, int]]
) -> list[ValidationRecord]:
    """Return the complete response of each side to the prompt. Raises NotPossible, JobNotFound."""
    responses = []
    for ref, step in sides:
        await context.reader.get(ref)
        records = await context.reader.validation_samples(ref, step)
        # Paired with itself, a validation has the prompt ids of its comparisons.
        pair = pair_responses(records, records).find(prompt_id)
        if pair is None:
            raise NotPossible(f"no response to the prompt {prompt_id} is stored for step {step} of {ref}")
        if pair.left.is_shortened:
            raise NotPossible(
                f"the response of step {step} of {ref} cannot be labelled: only its two ends are stored here"
            )
        responses.append(pair.left)
    return responses


def _check_preferable(left: ValidationRecord, right: ValidationRecord) -> None:
    """Raise RequestValidationError for equal responses, which no preference can tell apart."""
    if left.response == right.response:
        details: dict[str, Any] = {
            "type": "value_error",
            "loc": ("body", "verdict"),
            "msg": "must be bothGood or bothBad: the responses are equal",
            "input": None,
        }
        raise RequestValidationError([details])
