"""Payload limit of rollouts, which carry the recorded experts of each token with routing replay."""

import pytest

from kubealign.spec.job import AlignmentJob
from kubealign_services.roles.driver.errors import UnrecoverableError
from kubealign_services.roles.driver.rollouts.payload_limits import check_payload_limits
from support.bad_specs import whole_job
from support.prepared_report import report_of_row


@pytest.mark.parametrize("replayed", [False, True])
def test_recorded_experts_count(replayed: bool) -> None:
    rollout = {"sampling": {"maxTokens": 200}, "routingReplay": replayed}
    job = AlignmentJob.model_validate(whole_job("rloo", {"spec.rollout": rollout}))
    report = report_of_row(300)
    # 500 tokens of 17 bytes and their record, 200 of 16 bytes of text, and the envelope.
    size = 500 * (17 + 384 * replayed) + 200 * 16 + 8192
    check_payload_limits(job, report, size, record_bytes=384)
    remedy = r"or set rollout\.routingReplay to false \(384 bytes a token\)" if replayed else "long columns$"
    with pytest.raises(UnrecoverableError, match=f"{size} bytes.*{remedy}"):
        check_payload_limits(job, report, size - 1, record_bytes=384)


def test_all_sequences_of_an_episode_count() -> None:
    rollout = {
        "sampling": {"maxTokens": 200},
        "workflow": {"function": {"module": "flows:plan"}},
        "maxSequencesPerSample": 3,
    }
    job = AlignmentJob.model_validate(whole_job("rloo", {"spec.rollout": rollout}))
    # Three times 500 tokens of 17 bytes; the text is that of the last sequence.
    size = 3 * 500 * 17 + 200 * 16 + 8192
    check_payload_limits(job, report_of_row(300), size)
    with pytest.raises(
        UnrecoverableError, match=rf"{size} bytes.*lower rollout\.maxSequencesPerSample \(3\)"
    ):
        check_payload_limits(job, report_of_row(300), size - 1)
