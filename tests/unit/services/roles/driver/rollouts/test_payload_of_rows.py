"""Payload limits of rows that a reference scores over the bus."""

from typing import Any

import pytest

from kubealign.spec.job import AlignmentJob
from kubealign_services.data.prepared import DatasetReport, PreparationReport
from kubealign_services.roles.driver.errors import UnrecoverableError
from kubealign_services.roles.driver.rollouts.payload_limits import check_payload_limits
from support.bad_specs import whole_job


def job(changes: dict[str, Any]) -> AlignmentJob:
    return AlignmentJob.model_validate(whole_job("rewardModel", changes))


def report(prompt: int, response: int) -> PreparationReport:
    train = DatasetReport(
        kind="preferences",
        source="pairs.jsonl",
        rows_read=1,
        rows_kept=1,
        dropped=0,
        truncated=0,
        unknown_tokens=0,
        longest_prompt=prompt,
        longest_response=response,
        longest_sequence=prompt + response,
        longest_context_bytes=0,
        columns_left_out=[],
    )
    return PreparationReport(context=None, train=train, validation=None)


DPO = {"spec.algorithm": {"dpo": {}}}


SAMPLED = {
    "spec.validation": {"data": {"preferences": {"source": {"path": "held.jsonl"}}}, "sampling": {}},
    "spec.rollout": {"sampling": {"maxTokens": 1}},
}


@pytest.mark.parametrize("changes", [{}, SAMPLED], ids=["rows-alone", "validated-on-samples"])
def test_a_row_that_does_not_fit_fails_with_remedies(changes: dict[str, Any]) -> None:
    check_payload_limits(job(DPO | changes), report(100, 5000), 40_000)
    with pytest.raises(
        UnrecoverableError, match=r"5100 tokens\) may take 33692 bytes.*data.preferences.maxTokens"
    ):
        check_payload_limits(job(DPO | changes), report(100, 5000), 33_000)


@pytest.mark.parametrize(
    "changes",
    [
        DPO | {"spec.reference": {"placement": "WithTrainer"}},
        {"spec.algorithm": {"simpo": {}}},
    ],
)
def test_rows_that_bypass_the_bus_may_be_long(changes: dict[str, Any]) -> None:
    check_payload_limits(job(changes), report(10_000, 10_000), 18_000)
