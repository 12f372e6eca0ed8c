"""Comparison of the metrics of two runs, and the effect of rounding."""

import math
from typing import Any

import pytest

from kubealign.cli.views.replay_view import ReplayOutcome, replay_view
from kubealign.replay.comparison import MetricDifference, compare_runs, last_line_per_step

LINE = {"step": 3, "fence": 1, "time": 5.0, "seconds/step": 2.0, "tokens_per_second": 10.0, "refit/bytes": 1}


def line(**figures: float) -> dict[str, Any]:
    return LINE | {name.replace("_", "/", 1): value for name, value in figures.items()}


def test_timings_and_recorded_only_metrics_are_not_compared() -> None:
    recorded = {3: line(trainer_loss=0.5, reward_mean=0.25) | {"seconds/step": 9.0, "time": 8.0, "fence": 4}}
    result = compare_runs(recorded, {3: line(trainer_loss=0.5)})
    assert (result.steps, result.metrics, list(result.differences)) == (1, 1, [])
    assert result.largest is None and result.first_difference_beyond(0.0) is None


def test_one_bit_difference_is_within_rounding() -> None:
    next_up = math.nextafter(0.5, 1.0)
    result = compare_runs({3: line(trainer_loss=0.5)}, {3: line(trainer_loss=next_up)})
    (difference,) = result.differences
    assert difference == MetricDifference(3, "trainer/loss", 0.5, next_up)
    assert 0 < difference.relative < 1e-15
    assert result.first_difference_beyond(1e-4) is None and result.first_difference_beyond(0.0) == difference


def test_differences_are_in_step_order() -> None:
    recorded = {step: line(a_x=1.0, b_x=2.0) for step in (1, 2, 10)}
    replayed = {10: line(a_x=5.0, b_x=2.0), 2: line(a_x=1.0, b_x=2.0002), 1: line(a_x=1.0, b_x=2.0)}
    result = compare_runs(recorded, replayed)
    assert [(each.step, each.metric) for each in result.differences] == [(2, "b/x"), (10, "a/x")]
    # |2.0002 - 2| / 2.0002, and |5 - 1| / 5.
    assert result.differences[0].relative == pytest.approx(0.0002 / 2.0002)
    assert result.first_difference_beyond(1e-3) == result.largest == MetricDifference(10, "a/x", 1.0, 5.0)


def test_nan_equals_only_nan() -> None:
    nan, inf = math.nan, math.inf
    assert not compare_runs({1: line(a_x=nan)}, {1: line(a_x=nan)}).differences
    assert compare_runs({1: line(a_x=nan)}, {1: line(a_x=1.0)}).first_difference_beyond(1e9) is not None
    assert compare_runs({1: line(a_x=inf)}, {1: line(a_x=1.0)}).first_difference_beyond(1e9) is not None


def test_unrecorded_metric_is_a_difference() -> None:
    result = compare_runs({1: line()}, {1: line(a_x=1.0)})
    assert result.first_difference_beyond(1e9) == result.differences[0] and math.isnan(
        result.differences[0].recorded
    )


def test_negligible_values_do_not_differ() -> None:
    assert compare_runs({1: line(a_x=1e-9)}, {1: line(a_x=-3e-9)}).first_difference_beyond(1e-4) is None
    assert compare_runs({1: line(a_x=1e-3)}, {1: line(a_x=-3e-3)}).first_difference_beyond(1e-4) is not None


def test_last_line_of_a_step_counts_and_validation_lines_do_not() -> None:
    lines = [LINE | {"fence": 1}, {"step": 3, "val/loss": 1.0}, LINE | {"fence": 2}]
    assert last_line_per_step(lines) == {3: LINE | {"fence": 2}}


def outcome(recorded: float, replayed: float, **overrides: Any) -> ReplayOutcome:
    usual: dict[str, Any] = {"tolerance": 1e-4, "spec_was_modified": False, "weights_equal": None}
    usual["threads"] = (1, 1)
    comparison = compare_runs({3: line(a_x=recorded)}, {3: line(a_x=replayed)})
    return ReplayOutcome(comparison=comparison, requested_steps=1, **usual | overrides)


@pytest.mark.parametrize(
    ("result", "passes", "text"),
    [
        (outcome(1.0, 1.0, weights_equal=True), True, "1 metrics of 1 steps: equal bit for bit"),
        (outcome(1.0, 1.0, weights_equal=False), False, "final weights: not equal"),
        (outcome(1.0, 1.00001), True, "equal up to rounding; the largest relative difference is 1e-05"),
        (outcome(1.0, 1.00001, weights_equal=False), True, "up to rounding"),
        (outcome(1.0, 1.1), False, "step 3 is the first that differs, in a/x: 1 recorded, 1.1 now"),
        (outcome(1.0, 1.1, spec_was_modified=True), True, "step 3 is the first that differs"),
        (outcome(1.0, 1.1, threads=(2, 1)), False, "used 2 threads in the recorded run, and 1 now"),
    ],
)
def test_replay_verdict(result: ReplayOutcome, passes: bool, text: str) -> None:
    assert result.has_passed is passes
    assert any(text in str(part) for part in replay_view(result))


def test_incomplete_replay_is_no_success() -> None:
    short = ReplayOutcome(
        compare_runs({}, {}), 2, 1e-4, spec_was_modified=True, weights_equal=None, threads=(None, None)
    )
    assert not short.has_passed
    assert "only 0 of 2 steps" in str(replay_view(short)[1])
