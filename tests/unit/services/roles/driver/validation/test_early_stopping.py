"""Early stopping: by a target, by patience, and on a score that may apply to no response."""

from pathlib import Path
from typing import Any

import pytest

from kubealign.spec.held_out_rows import list_held_out_rows
from kubealign.spec.sections.validation import EarlyStopping, Validation
from kubealign_services.roles.driver.errors import UnrecoverableError
from kubealign_services.roles.driver.metrics.report import MetricsReport
from kubealign_services.roles.driver.state import JobState
from kubealign_services.roles.driver.validation.validation import (
    ScheduledRows,
    ValidationSchedule,
    apply_early_stopping,
)

SPEC = Validation.model_validate(
    {
        "data": {"prompts": {"source": {"path": "x"}}},
        "everySteps": 1,
        "earlyStopping": {"metric": "val/exact", "target": {"atLeast": 0.5}},
    }
)
(ROWS,) = list_held_out_rows(SPEC)


async def measure_each(path: Path, *measured: dict[str, float]) -> JobState:
    values = iter(measured)

    async def measurement(state: JobState) -> dict[str, float]:
        return next(values)

    scheduled = ScheduledRows(ROWS, [measurement], ["val/exact"])
    schedule = ValidationSchedule(SPEC, [scheduled], MetricsReport(path, 1, []))
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


def stopped(stopping: dict[str, Any], *values: float) -> tuple[int, str]:
    """Return the number of values after which the job ends, and the reason; the first is the initial
    weights'.
    """
    spec = EarlyStopping.model_validate({"metric": "val/exact", **stopping})
    state = JobState(step=0)
    for number, value in enumerate(values, start=1):
        # A restart reads the state from a checkpoint.
        state = JobState.model_validate_json(state.model_dump_json())
        apply_early_stopping(spec, value, state)
        if state.finished:
            return number, state.finished
        state.step += 1
    return 0, ""


def test_patience_counts_validations_without_a_better_value() -> None:
    patience = {"patience": {"validations": 2}}
    why = "val/exact has not been better than 0.5 for 2 validations"
    assert stopped(patience, 0.1, 0.5, 0.5, 0.4) == (4, why)
    assert stopped(patience, 0.1, 0.5, 0.4, 0.6, 0.5, 0.7) == (0, "")
    assert stopped(patience, 0.5, 0.4, 0.3) == (3, why)


def test_patience_has_a_direction_and_a_margin() -> None:
    patience = {"patience": {"validations": 1, "direction": "Minimize", "margin": 0.1}}
    assert stopped(patience, 3.0, 2.0, 1.95)[0] == 3
    assert stopped(patience, 3.0, 2.0, 1.8) == (0, "")


def test_the_initial_weights_end_no_job() -> None:
    target = {"target": {"atLeast": 0.5}}
    assert stopped(target, 0.9, 0.9) == (2, "val/exact reached 0.9")
    both = target | {"patience": {"validations": 1}}
    assert stopped(both, 0.9, 0.2) == (2, "val/exact has not been better than 0.9 for 1 validations")


async def test_a_metric_that_no_score_has_is_an_error(tmp_path: Path) -> None:
    async def measurement(state: JobState) -> dict[str, float]:
        return {"val/loss": 1.0}

    scheduled = ScheduledRows(ROWS, [measurement])
    schedule = ValidationSchedule(SPEC, [scheduled], MetricsReport(tmp_path / "metrics.jsonl", 1, []))
    with pytest.raises(UnrecoverableError, match="val/exact is not measured; there are val/loss"):
        await schedule.measure(JobState(step=1))
