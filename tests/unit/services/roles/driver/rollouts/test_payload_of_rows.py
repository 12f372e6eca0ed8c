"""Payload limits of rows that a reference scores over the bus."""

from typing import Any

import pytest

from kubealign.spec.job import AlignmentJob
from kubealign_services.roles.driver.errors import UnrecoverableError
from kubealign_services.roles.driver.rollouts.payload_limits import check_payload_limits
from support.bad_specs import whole_job
from support.prepared_report import report_of_row


def job(changes: dict[str, Any]) -> AlignmentJob:
    return AlignmentJob.model_validate(whole_job("rewardModel", changes))


DPO = {"spec.algorithm": {"dpo": {}}}


SAMPLED = {
    "spec.validation": {"data": {"preferences": {"source": {"path": "held.jsonl"}}}, "sampling": {}},
    "spec.rollout": {"sampling": {"maxTokens": 1}},
}


@pytest.mark.parametrize("changes", [{}, SAMPLED], ids=["rows-alone", "validated-on-samples"])
def test_a_row_that_does_not_fit_fails_with_remedies(changes: dict[str, Any]) -> None:
    check_payload_limits(job(DPO | changes), report_of_row(100, 5000, kind="preferences"), 40_000)
    with pytest.raises(
        UnrecoverableError, match=r"5100 tokens\) may take 33692 bytes.*data.preferences.maxTokens"
    ):
        check_payload_limits(job(DPO | changes), report_of_row(100, 5000, kind="preferences"), 33_000)


@pytest.mark.parametrize(
    "changes",
    [
        DPO | {"spec.reference": {"placement": "WithTrainer"}},
        {"spec.algorithm": {"simpo": {}}},
    ],
)
def test_rows_that_bypass_the_bus_may_be_long(changes: dict[str, Any]) -> None:
    check_payload_limits(job(changes), report_of_row(10_000, 10_000, kind="preferences"), 18_000)
