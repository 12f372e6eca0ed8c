"""Payload limit of judgements, which contain the question's text."""

import pytest

from kubealign.spec.job import AlignmentJob
from kubealign_services.roles.driver.errors import UnrecoverableError
from kubealign_services.roles.driver.rollouts.payload_limits import check_payload_limits
from support.bad_specs import whole_job
from support.prepared_report import report_of_row


def test_a_judgement_that_does_not_fit_fails_with_remedies() -> None:
    judge = {"prompt": "{response}" + "?" * 90, "maxTokens": 400}
    job = AlignmentJob.model_validate(
        whole_job(
            "rloo",
            {
                "spec.algorithm": {"selfRewarding": {"judge": judge}},
                "spec.rewards": [],
                "spec.rollout": {"sampling": {"maxTokens": 200}},
            },
        )
    )
    # (100 + 300 + 200 + 400) tokens of 17 + 16 bytes, and the envelope's 8192.
    check_payload_limits(job, report_of_row(300), 41_192)
    with pytest.raises(UnrecoverableError, match=r"41192 bytes.*lower judge.maxTokens \(400\)"):
        check_payload_limits(job, report_of_row(300), 41_191)


def test_a_judgement_of_a_reward_that_does_not_fit_fails_with_remedies() -> None:
    judge = {"task": {"pointwise": {}}, "template": "{response}" + "?" * 90, "maxTokens": 400}
    job = AlignmentJob.model_validate(
        whole_job(
            "rloo",
            {
                "spec.rewards": [{"name": "own", "policyJudge": judge}],
                "spec.rollout": {"sampling": {"maxTokens": 200}},
            },
        )
    )
    # (100 + 300 + 200 + 50 + 400) tokens of 17 + 16 bytes, and the envelope's 8192.
    check_payload_limits(job, report_of_row(300, context_bytes=50), 42_842)
    with pytest.raises(UnrecoverableError, match=r"42842 bytes.*lower policyJudge.maxTokens \(400\)"):
        check_payload_limits(job, report_of_row(300, context_bytes=50), 42_841)
