"""Payload limit of a teacher's candidates, checked before the job begins."""

import pytest

from kubealign.spec.job import AlignmentJob
from kubealign_services.data.prepared import DatasetReport, PreparationReport
from kubealign_services.roles.driver.errors import UnrecoverableError
from kubealign_services.roles.driver.rollouts.payload_limits import check_payload_limits
from support.tiny_jobs import FROM_CONFIG


def report(longest_response: int) -> PreparationReport:
    part = DatasetReport(
        kind="demonstrations",
        source="rows.jsonl",
        rows_read=1,
        rows_kept=1,
        dropped=0,
        truncated=0,
        unknown_tokens=0,
        longest_prompt=10,
        longest_response=longest_response,
        longest_sequence=10 + longest_response,
        longest_context_bytes=100,
        columns_left_out=[],
    )
    return PreparationReport(context=None, train=part, validation=None)


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
    check_payload_limits(job, report(1000), 808_192)
    with pytest.raises(
        UnrecoverableError, match=r"response \(1000 tokens\) may take 808192 bytes.*candidates \(100\)"
    ):
        check_payload_limits(job, report(1000), 808_191)


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
    check_payload_limits(job, report(0), 808_192)
    with pytest.raises(
        UnrecoverableError,
        match=r"808192 bytes.*onPolicyDistillation\.distribution\.candidates \(100\) or rollout\.sampling",
    ):
        check_payload_limits(job, report(0), 808_191)
