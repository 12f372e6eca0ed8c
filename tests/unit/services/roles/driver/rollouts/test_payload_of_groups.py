"""Payload limit of the samples of a prompt, which a reward of the scope Group receives in one message."""

from typing import Any

import pytest

from kubealign.spec.job import AlignmentJob
from kubealign_services.roles.driver.errors import UnrecoverableError
from kubealign_services.roles.driver.rollouts.payload_limits import check_payload_limits
from support.bad_specs import whole_job
from support.prepared_report import report_of_row

GROUP = {"name": "rank", "function": {"module": "a:b"}, "scope": "Group"}
SAMPLE = {"name": "exact", "function": {"module": "a:c"}}
VALIDATION = {"data": {"prompts": {"source": {"path": "x"}}}, "sampling": {"samplesPerPrompt": 64}}

REPORT = report_of_row(30, context_bytes=100)


@pytest.mark.parametrize(
    ("spec", "samples", "field"),
    [
        ({"algorithm": {"grpo": {"samplesPerPrompt": 16}}, "rewards": [SAMPLE, GROUP]}, 16, "grpo"),
        # One more of the greedy baseline.
        ({"algorithm": {"remax": {"samplesPerPrompt": 16}}, "rewards": [GROUP]}, 17, "remax"),
        ({"rewards": [GROUP], "validation": VALIDATION}, 64, "validation"),
        (
            {
                "rewards": [SAMPLE],
                "validation": VALIDATION | {"sampling": VALIDATION["sampling"] | {"scores": [GROUP]}},
            },
            64,
            "validation",
        ),
    ],
)
def test_samples_that_do_not_fit_fail_with_remedies(spec: dict[str, Any], samples: int, field: str) -> None:
    changes = {f"spec.{name}": value for name, value in spec.items()}
    changes["spec.rollout"] = {"sampling": {"maxTokens": 200}}
    job = AlignmentJob.model_validate(whole_job("rloo", changes))
    # 200 tokens of 16 bytes and 256 bytes for each sample, the row, and the envelope.
    size = samples * (200 * 16 + 256) + 100 + 8192
    check_payload_limits(job, REPORT, size)
    path = "validation.sampling" if field == "validation" else f"algorithm.{field}"
    with pytest.raises(
        UnrecoverableError,
        match=rf"the {samples} samples of a prompt may take {size} bytes.*rank scores them together: "
        rf"lower {path}\.samplesPerPrompt .*scope: Sample",
    ):
        check_payload_limits(job, REPORT, size - 1)


def test_samples_that_are_scored_one_by_one_have_no_such_limit() -> None:
    changes = {"spec.rewards": [SAMPLE], "spec.algorithm": {"grpo": {"samplesPerPrompt": 512}}}
    job = AlignmentJob.model_validate(
        whole_job("rloo", changes | {"spec.rollout": {"sampling": {"maxTokens": 200}}})
    )
    check_payload_limits(job, REPORT, 20_000)
