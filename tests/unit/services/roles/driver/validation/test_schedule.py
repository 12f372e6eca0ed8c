"""Schedule of several validation sets: periods, restarts, and the metrics that the state holds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kubealign.spec.held_out_rows import list_held_out_rows
from kubealign.spec.sections.lifecycle import KeepBest
from kubealign.spec.sections.validation import Validation
from kubealign_services.roles.driver.errors import UnrecoverableError
from kubealign_services.roles.driver.metrics.report import MetricsReport
from kubealign_services.roles.driver.state import JobState
from kubealign_services.roles.driver.validation.validation import (
    Measurement,
    ScheduledRows,
    ValidationSchedule,
)

DATA = {"prompts": {"source": {"path": "x"}}}
SPEC: dict[str, Any] = {
    "data": DATA,
    "everySteps": 4,
    "sets": [
        {"name": "math", "data": DATA, "everySteps": 2, "atStart": False},
        {"name": "code", "data": DATA, "atEnd": False},
    ],
}


class Measured:
    """Schedule of which each set measures 10 times the step, and the measurements so far."""

    def __init__(self, path: Path, spec: dict[str, Any], **options: Any) -> None:
        self.calls: list[tuple[str, int]] = []
        validation = Validation.model_validate(spec)
        scheduled = [
            ScheduledRows(rows, [self._measurement(rows.name or "", f"{rows.metric_prefix}exact")])
            for rows in list_held_out_rows(validation)
        ]
        self.schedule = ValidationSchedule(validation, scheduled, MetricsReport(path, 1, []), **options)

    def _measurement(self, name: str, metric: str) -> Measurement:
        async def measure(state: JobState) -> dict[str, float]:
            self.calls.append((name, state.step))
            return {metric: 10.0 * state.step}

        return measure

    async def attempt(
        self, state: JobState, last: int, after_step: Callable[[JobState], None] = lambda _: None
    ) -> JobState:
        """Run the steps up to the last one from a state that was stored."""
        state = JobState.model_validate_json(state.model_dump_json())
        await self.schedule.measure_at_start(state)
        while state.step < last and not state.finished:
            state = state.copy_for_next_step()
            await self.schedule.measure_due(state)
            after_step(state)
        return state

    def steps_of(self, name: str) -> list[int]:
        return [step for each, step in self.calls if each == name]


@pytest.fixture
def measured(tmp_path: Path) -> Measured:
    return Measured(tmp_path / "metrics.jsonl", SPEC)


async def test_each_set_has_its_own_period_start_and_end(measured: Measured) -> None:
    state = await measured.attempt(JobState(), 9)
    await measured.schedule.measure_at_end(state)
    assert measured.steps_of("") == [0, 4, 8, 9]
    assert measured.steps_of("math") == [2, 4, 6, 8, 9]
    assert measured.steps_of("code") == [0, 4, 8]


async def test_the_end_measures_only_what_the_last_step_has_not(measured: Measured) -> None:
    state = await measured.attempt(JobState(), 6)
    await measured.schedule.measure_at_end(state)
    assert measured.steps_of("math") == [2, 4, 6]
    assert measured.steps_of("") == [0, 4, 6]
    # Both measurements of the step are its validation.
    assert state.validation == {"val/exact": 60.0, "val/math/exact": 60.0}


@pytest.mark.parametrize("stop", range(9))
async def test_a_restart_measures_nothing_twice_and_leaves_nothing_out(tmp_path: Path, stop: int) -> None:
    measured = Measured(tmp_path / "metrics.jsonl", SPEC)
    states = [await measured.attempt(JobState(), stop)]
    states.append(await measured.attempt(states[0], 8))
    await measured.schedule.measure_at_end(states[1])
    assert sorted(measured.calls) == sorted(
        [("", 0), ("", 4), ("", 8), ("code", 0), ("code", 4), ("code", 8)]
        + [("math", step) for step in (2, 4, 6, 8)]
    )


async def test_a_step_whose_measurement_was_interrupted_is_measured_after_the_restart(
    measured: Measured,
) -> None:
    state = await measured.attempt(JobState(), 1)
    # The trainer has made the step, and the driver ended before it measured.
    state = await measured.attempt(state.copy_for_next_step(), 3)
    assert measured.steps_of("math") == [2]
    await measured.attempt(state.copy_for_next_step(), 4)
    assert measured.calls[-3:] == [("", 4), ("math", 4), ("code", 4)]


async def test_metrics_of_another_step_are_no_metrics_of_this_one(measured: Measured) -> None:
    state = await measured.attempt(JobState(), 6)
    assert state.validation == {"val/math/exact": 60.0}
    assert (state.validated_step, state.validated_sets) == (6, {"": 4, "math": 6, "code": 4})


async def test_a_state_of_an_earlier_version_is_not_measured_again(measured: Measured) -> None:
    state = JobState(step=4, validated_step=4, validation={"val/exact": 0.5})
    spec = {key: value for key, value in SPEC.items() if key != "sets"}
    measured.schedule = ValidationSchedule(
        Validation.model_validate(spec), measured.schedule._scheduled[:1], measured.schedule._report
    )
    await measured.schedule.measure_at_end(await measured.attempt(state, 4))
    assert measured.calls == []


async def test_the_metric_of_a_set_ends_the_job(tmp_path: Path) -> None:
    stopping = {"metric": "val/math/exact", "target": {"atLeast": 55}}
    measured = Measured(tmp_path / "metrics.jsonl", SPEC | {"earlyStopping": stopping})
    state = await measured.attempt(JobState(), 9)
    assert (state.step, state.finished) == (6, "val/math/exact reached 60")


async def test_a_metric_that_a_set_does_not_have_is_an_error_once_it_is_measured(tmp_path: Path) -> None:
    best = KeepBest.model_validate({"metric": "val/math/exakt"})
    measured = Measured(tmp_path / "metrics.jsonl", SPEC, keep_best=best)
    steps: list[int] = []
    with pytest.raises(
        UnrecoverableError,
        match=r"checkpoint\.keepBest\.metric: val/math/exakt is not measured; there are val/math/exact$",
    ):
        await measured.attempt(JobState(), 9, after_step=lambda state: steps.append(state.step))
    assert steps == [1]


async def test_the_initial_policy_is_sampled_before_the_first_step(
    tmp_path: Path,
) -> None:
    class InitialPolicy:
        def __init__(self) -> None:
            self.steps: list[int] = []

        async def load(self, state: JobState) -> None:
            self.steps.append(state.step)

    validation = Validation.model_validate({"data": DATA, "everySteps": 4, "atStart": False})
    initial: Any = InitialPolicy()
    [rows] = list_held_out_rows(validation)
    report = MetricsReport(tmp_path / "metrics.jsonl", 1, [])
    schedule = ValidationSchedule(validation, [ScheduledRows(rows, [], (), initial)], report)
    await schedule.measure_at_start(JobState())
    assert initial.steps == [0]
