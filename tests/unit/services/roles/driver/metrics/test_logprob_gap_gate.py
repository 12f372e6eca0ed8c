"""Actions of the mismatch gate: warnings at the first limit, failure at the second."""

import logging
from typing import Any

import pytest
import torch

from kubealign.spec.sections.rollout import MismatchGateSpec
from kubealign_services.batch.packed import Batch, pack
from kubealign_services.roles.driver.errors import UnrecoverableError
from kubealign_services.roles.driver.metrics.logprob_gap_gate import LogprobGapGate
from kubealign_services.roles.driver.metrics.report import StepRecord


def batch(gap: float) -> Batch:
    """Return one response token whose log-probabilities differ by `gap` nats."""
    packed = pack([[1, 2]], ["0"])
    packed.token_columns |= {
        "loss_mask": torch.tensor([0, 1], dtype=torch.uint8),
        "engine_logprobs": torch.tensor([0.0, -1.0], dtype=torch.float64),
        "old_logprobs": torch.tensor([0.0, -1.0 - gap], dtype=torch.float64),
        "weight_version": torch.tensor([0, 0], dtype=torch.int32),
    }
    return packed


def warned_steps(gaps: list[float], caplog: pytest.LogCaptureFixture, **gate: Any) -> list[int]:
    """Return the steps with a warning, after two checks of each step, as in the training loop."""
    checked = LogprobGapGate(MismatchGateSpec(**gate))
    with caplog.at_level(logging.WARNING):
        for number, gap in enumerate(gaps):
            step = StepRecord(number)
            checked.check(batch(gap), step)
            checked.check(batch(gap), step)
    return [record.__dict__["step"] for record in caplog.records]


def test_each_crossing_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    assert warned_steps([0.04, 0.06, 0.2, 0.3, 0.01, 0.045, 0.1], caplog) == [1, 6]


def test_the_warning_names_metric_value_and_limits(caplog: pytest.LogCaptureFixture) -> None:
    warned_steps([0.0625], caplog)
    fields = caplog.records[0].__dict__
    assert (fields["metric"], fields["limit"]) == ("rollout/logprob_gap_mean", 0.05)
    assert fields["value"] == pytest.approx(0.0625)
    assert fields["fails_above"] == 0.5


@pytest.mark.parametrize(
    ("gate", "allowed", "refused"),
    [
        ({}, 0.499, 0.501),
        ({"mean": 0.2}, 1.99, 2.01),
        ({"fail_mean": 0.1}, 0.099, 0.101),
        ({"action": "Fail"}, 0.0499, 0.0501),
        ({"mean": 0.3, "action": "Fail"}, 0.299, 0.301),
    ],
)
def test_the_job_fails_above_the_last_limit(gate: dict[str, Any], allowed: float, refused: float) -> None:
    checked = LogprobGapGate(MismatchGateSpec(**gate))
    checked.check(batch(allowed), StepRecord(1))
    with pytest.raises(UnrecoverableError, match=r"mismatchGate\.(mean|failMean)"):
        checked.check(batch(refused), StepRecord(1))


def test_a_gap_that_is_no_number_fails_the_job() -> None:
    with pytest.raises(UnrecoverableError, match="nan nats"):
        LogprobGapGate(MismatchGateSpec()).check(batch(float("nan")), StepRecord(1))


def test_without_a_gate_nothing_is_measured() -> None:
    step = StepRecord(1)
    LogprobGapGate(None).check(batch(9.0), step)
    assert step.metrics == {}
