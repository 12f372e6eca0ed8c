"""Early stopping on a score that may apply to no response."""

from pathlib import Path

import pytest

from kubealign.spec.sections.validation import Validation
from kubealign_services.roles.driver.errors import UnrecoverableError
from kubealign_services.roles.driver.metrics.report import MetricsReport
from kubealign_services.roles.driver.state import JobState
from kubealign_services.roles.driver.validation.validation import ValidationSchedule

SPEC = Validation.model_validate(
    {
        "data": {"prompts": {"source": {"path": "x"}}},
        "everySteps": 1,
        "earlyStopping": {"metric": "val/exact", "target": {"atLeast": 0.5}},
    }
)


async def measure_each(path: Path, *measured: dict[str, float]) -> JobState:
    values = iter(measured)

    async def measurement(state: JobState) -> dict[str, float]:
        return next(values)

    schedule = ValidationSchedule(SPEC, [measurement], MetricsReport(path, 1, []), ["val/exact"])
    state = JobState(step=1)
    for _ in measured:
        assert not state.finished
        await schedule.measure(state)
    return state


async def test_a_score_that_applies_to_no_response_does_not_stop_the_job(tmp_path: Path) -> None:
    state = await measure_each(tmp_path / "metrics.jsonl", {"val/other": 1.0}, {"val/exact": 0.4}, {})
    assert not state.finished
    state = await measure_each(tmp_path / "metrics.jsonl", {}, {"val/exact": 0.5})
    assert state.finished == "val/exact reached 0.5"


async def test_a_metric_that_no_score_has_is_an_error(tmp_path: Path) -> None:
    async def measurement(state: JobState) -> dict[str, float]:
        return {"val/loss": 1.0}

    schedule = ValidationSchedule(SPEC, [measurement], MetricsReport(tmp_path / "metrics.jsonl", 1, []))
    with pytest.raises(UnrecoverableError, match="val/exact is not measured; there are val/loss"):
        await schedule.measure(JobState(step=1))
