"""Payload limit of a teacher's candidates, checked before the job begins."""

import pytest

from kubealign.spec.job import AlignmentJob
from kubealign_services.roles.driver.errors import UnrecoverableError
from kubealign_services.roles.driver.rollouts.payload_limits import check_payload_limits
from support.prepared_report import report_of_row
from support.tiny_jobs import FROM_CONFIG


def test_candidates_of_the_longest_response_that_do_not_fit() -> None:
    job = AlignmentJob.model_validate(
        {
            "metadata": {"name": "student"},
            "spec": {
                "maxSteps": 1,
                "algorithm": {"distillation": {"candidates": 100}},
                "policy": {"model": FROM_CONFIG},
                "teacher": {"model": FROM_CONFIG},
                "data": {"demonstrations": {"source": {"path": "rows.jsonl"}}},
            },
        }
    )
    # 1,000 tokens of 100 candidates of 8 bytes, and 8,192 bytes around them.
    check_payload_limits(job, report_of_row(10, 1000, 100, "demonstrations"), 808_192)
    with pytest.raises(
        UnrecoverableError, match=r"response \(1000 tokens\) may take 808192 bytes.*candidates \(100\)"
    ):
        check_payload_limits(job, report_of_row(10, 1000, 100, "demonstrations"), 808_191)


def test_candidates_of_the_longest_sample_that_do_not_fit() -> None:
    job = AlignmentJob.model_validate(
        {
            "metadata": {"name": "student"},
            "spec": {
                "maxSteps": 1,
                "algorithm": {"onPolicyDistillation": {"distribution": {"candidates": 100}}},
                "policy": {"model": FROM_CONFIG},
                "teacher": {"model": FROM_CONFIG},
                "data": {"prompts": {"source": {"path": "rows.jsonl"}}},
                "rollout": {"sampling": {"maxTokens": 1000}},
            },
        }
    )
    check_payload_limits(job, report_of_row(10, 0, 100, "demonstrations"), 808_192)
    with pytest.raises(
        UnrecoverableError,
        match=r"808192 bytes.*onPolicyDistillation\.distribution\.candidates \(100\) or rollout\.sampling",
    ):
        check_payload_limits(job, report_of_row(10, 0, 100, "demonstrations"), 808_191)
