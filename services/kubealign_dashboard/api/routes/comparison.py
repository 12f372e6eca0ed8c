"""Routes for the responses of a validation, and for their comparison with those of another one."""

import asyncio
from typing import Annotated, Any, TypeAlias

from fastapi import APIRouter, Depends, Query, Response

from kubealign.client.errors import NotPossible
from kubealign.client.records import JobRef
from kubealign.human_labels import label_subject
from kubealign.spec.base import DNS_LABEL_PATTERN, JOB_NAME_PATTERN
from kubealign_dashboard.api import serializers
from kubealign_dashboard.api.models import ComparisonPage, ValidationSampleList
from kubealign_dashboard.api.openapi import error_responses, success_response
from kubealign_dashboard.api.routes.jobs import JOB
from kubealign_dashboard.comparison.pairs import (
    PairedValidations,
    PairFilter,
    PairOrder,
    ResponsePair,
    pair_responses,
)
from kubealign_dashboard.comparison.text_diff import DiffPart, compare_texts
from kubealign_dashboard.web.authorization import JobRequestContext, ReadableJob
from kubealign_dashboard.web.json_response import finite, json_response
from kubealign_dashboard.web.parameters import API_PREFIX

router = APIRouter(prefix=API_PREFIX, tags=["comparison"])

#: Job and step of a validation.
_Side: TypeAlias = tuple[JobRef, int]
_Step = Annotated[int, Query(ge=0, le=2**31 - 1, description="Step of the validation.", examples=[100])]
_Offset = Annotated[int, Query(ge=0, le=2**31 - 1, description="Number of items to skip.", examples=[0])]


@router.get(
    JOB + "/validation",
    response_class=Response,
    responses=success_response(ValidationSampleList, "A page of responses.") | error_responses(404, 502),
    summary="Read the responses of a validation",
)
async def validation(
    context: ReadableJob,
    step: _Step,
    offset: _Offset = 0,
    limit: Annotated[
        int, Query(ge=1, le=500, description="Maximum number of responses.", examples=[100])
    ] = 100,
) -> Response:
    """Return the responses to held-out prompts at a step, by evaluation set and row."""
    await context.reader.get(context.ref)
    records = await context.reader.validation_samples(context.ref, step)
    page = [serializers.validation_sample(record) for record in records[offset : offset + limit]]
    return json_response({"items": page, "total": len(records)})


class ComparedSides:
    """A dependency: the two validations of a comparison, both of which the caller may read.

    The left side is the job of the path; the right side is the same job unless another one is named.
    """

    def __init__(
        self,
        context: ReadableJob,
        step: _Step,
        other_step: Annotated[
            int,
            Query(
                alias="otherStep",
                ge=0,
                le=2**31 - 1,
                description="Step of the right side's validation.",
                examples=[200],
            ),
        ],
        other_name: Annotated[
            str | None,
            Query(
                alias="otherName",
                pattern=JOB_NAME_PATTERN,
                max_length=52,
                description="Job of the right side; default: the same job.",
                examples=["sums"],
            ),
        ] = None,
        other_namespace: Annotated[
            str | None,
            Query(
                alias="otherNamespace",
                pattern=DNS_LABEL_PATTERN,
                max_length=63,
                description="Namespace of the right side's job; default: the same namespace.",
                examples=["default"],
            ),
        ] = None,
    ) -> None:
        ref = context.ref
        self._context: JobRequestContext = context
        self.left = (ref, step)
        self.right = (JobRef(other_namespace or ref.namespace, other_name or ref.name), other_step)

    async def read(self) -> PairedValidations:
        """Read both sides and pair their responses.

        Raises:
            Forbidden: The caller may not read the right side's job.
            JobNotFound: One of the jobs does not exist.
            NotPossible: A side has no stored responses.
        """
        context = self._context
        await context.authorize("get", self.right[0].namespace, self.right[0].name)
        sides = []
        for ref, step in (self.left, self.right):
            await context.reader.get(ref)
            records = await context.reader.validation_samples(ref, step)
            if not records:
                raise NotPossible(f"no response of a validation at step {step} of {ref} is stored")
            sides.append(records)
        return await asyncio.to_thread(pair_responses, *sides)


@router.get(
    JOB + "/comparison",
    response_class=Response,
    responses=success_response(ComparisonPage, "A page of pairs.") | error_responses(404, 409, 502),
    summary="Compare two validations sample by sample",
)
async def comparison(
    sides: Annotated[ComparedSides, Depends()],
    score: Annotated[
        str | None,
        Query(
            max_length=253,
            description="Score by which pairs are filtered and sorted; default: the first one of `scores`.",
            examples=["right"],
        ),
    ] = None,
    set_name: Annotated[
        str | None,
        Query(alias="set", max_length=253, description="Only this evaluation set.", examples=[""]),
    ] = None,
    show: Annotated[
        PairFilter,
        Query(
            description="different: unequal scores; left, right: this side has the higher score.",
            examples=["different"],
        ),
    ] = PairFilter.ALL,
    sort: Annotated[
        PairOrder,
        Query(
            description="difference: largest first; gain, loss: right's score minus left's, descending or "
            "ascending; row: as in the held-out rows.",
            examples=["difference"],
        ),
    ] = PairOrder.DIFFERENCE,
    offset: _Offset = 0,
    limit: Annotated[int, Query(ge=1, le=20, description="Maximum number of pairs.", examples=[10])] = 10,
) -> Response:
    """Return the responses to equal prompts side by side, with the differences of their texts.

    409 when a side has no stored responses.
    """
    paired = await sides.read()
    selected = paired.of_set(set_name)
    chosen_score = score if score is not None else next(iter(paired.scores), "")
    pairs = selected.select(chosen_score, show, sort)
    items = await asyncio.to_thread(
        lambda: [
            _pair_item(pair, chosen_score, sides.left, sides.right) for pair in pairs[offset : offset + limit]
        ]
    )
    counts = selected.count(chosen_score)
    document = {
        "left": _side(*sides.left),
        "right": _side(*sides.right),
        "sets": paired.set_names,
        "scores": paired.scores,
        "score": chosen_score,
        "pairs": len(selected.pairs),
        "leftHigher": counts.left,
        "rightHigher": counts.right,
        "equal": counts.equal,
        "unscored": counts.unscored,
        "meanDifference": finite(counts.mean_difference),
        "unpairedLeft": paired.unpaired_left,
        "unpairedRight": paired.unpaired_right,
        "total": len(pairs),
        "items": items,
    }
    return json_response(document)


def _side(ref: JobRef, step: int) -> dict[str, Any]:
    return {"namespace": ref.namespace, "name": ref.name, "step": step}


def _pair_item(pair: ResponsePair, score: str, left: _Side, right: _Side) -> dict[str, Any]:
    diff = compare_texts(pair.left.response, pair.right.response)
    key = pair.key
    return {
        "id": key.id,
        "subject": label_subject(key.id, left, right),
        "set": key.set_name,
        "prompt": key.prompt,
        "difference": finite(pair.difference(score)),
        "unit": diff.unit,
        "left": serializers.validation_sample(pair.left)
        | {"parts": _parts(diff.left), "subject": label_subject(key.id, left)},
        "right": serializers.validation_sample(pair.right)
        | {"parts": _parts(diff.right), "subject": label_subject(key.id, right)},
    }


def _parts(parts: list[DiffPart]) -> list[dict[str, Any]]:
    return [{"text": part.text, "changed": part.changed} for part in parts]
