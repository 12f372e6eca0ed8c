"""Curves over runs: steps, seconds, means and bands, worked by hand."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubealign.plots.curves import (
    Axis,
    MetricNames,
    PlotError,
    RunGroup,
    RunMetrics,
    build_curve,
    parse_group,
    select_default_metric,
)

REWARD = MetricNames(["reward/mean"])


def run(name: str, *rows: dict[str, float]) -> RunMetrics:
    return RunMetrics(name, rows)


FIRST = run(
    "first",
    {"step": 0, "val/reward": 0.1},
    {"step": 1, "reward/mean": 0.2, "seconds/step": 3.0},
    {"step": 2, "reward/mean": 0.4, "seconds/step": 2.0, "val/reward": 0.5},
)
SECOND = run(
    "second",
    {"step": 1, "reward/mean": 0.6, "seconds/step": 5.0},
    {"step": 2, "reward/mean": 0.0, "seconds/step": 4.0},
    {"step": 3, "reward/mean": 1.0, "seconds/step": 4.0},
)


def test_curve_of_one_run_has_its_values() -> None:
    curve = build_curve(RunGroup("one", [FIRST]), REWARD, Axis.STEP)
    assert (curve.xs, curve.means) == ([1, 2], [0.2, 0.4])
    assert curve.means == curve.lows == curve.highs


def test_validation_before_the_first_step_is_at_second_zero() -> None:
    curve = build_curve(RunGroup("one", [FIRST]), MetricNames(["val/reward"]), Axis.SECONDS)
    assert (curve.xs, curve.means) == ([0.0, 5.0], [0.1, 0.5])


def test_group_has_mean_and_band_over_the_steps_of_all_runs() -> None:
    curve = build_curve(RunGroup("both", [FIRST, SECOND]), REWARD, Axis.SECONDS)
    assert curve.xs == [4.0, 7.0]  # (3 + 5) / 2, (3 + 2 + 5 + 4) / 2
    assert curve.means == pytest.approx([0.4, 0.2])
    assert (curve.lows, curve.highs, curve.runs) == ([0.2, 0.0], [0.6, 0.4], 2)


def test_values_that_are_not_finite_are_left_out() -> None:
    holes = run(
        "holes",
        {"step": 1, "reward/mean": math.nan, "seconds/step": 1.0},
        {"step": 2, "reward/mean": 0.5, "seconds/step": 1.0},
    )
    curve = build_curve(RunGroup("one", [holes]), REWARD, Axis.SECONDS)
    assert (curve.xs, curve.means) == ([2.0], [0.5])


def test_first_name_that_a_run_has_counts() -> None:
    foreign = run("foreign", {"step": 1, "reward": 0.25}, {"step": 2, "reward": 0.75})
    names = MetricNames.parse("reward/mean, reward")
    curve = build_curve(RunGroup("both", [foreign, FIRST]), names, Axis.STEP)
    assert curve.means == pytest.approx([0.225, 0.575])
    assert names.title == "reward/mean"


@pytest.mark.parametrize(
    ("group", "metric", "axis", "text"),
    [
        ([FIRST], "kl", Axis.STEP, "first has no metric kl; it has reward/mean, seconds/step, val/reward"),
        (
            [FIRST, run("late", {"step": 7, "reward/mean": 1.0})],
            "reward/mean",
            Axis.STEP,
            "first, late: no step",
        ),
        (
            [run("foreign", {"step": 1, "loss": 1.0})],
            "loss",
            Axis.SECONDS,
            "foreign has no seconds/step at step 1",
        ),
    ],
)
def test_curves_that_cannot_be_drawn_are_refused(
    group: list[RunMetrics], metric: str, axis: Axis, text: str
) -> None:
    with pytest.raises(PlotError, match=text):
        build_curve(RunGroup("group", group), MetricNames.parse(metric), axis)


def test_default_metric_is_one_that_all_runs_have() -> None:
    groups = [RunGroup("a", [FIRST]), RunGroup("b", [SECOND])]
    assert select_default_metric(groups, ["val/reward", "reward/mean"]) == REWARD
    with pytest.raises(PlotError, match="the runs share reward/mean, seconds/step"):
        select_default_metric(groups, ["sft/loss"])


@pytest.mark.parametrize(
    ("text", "label", "runs"),
    [
        ("runs/a", None, ["runs/a"]),
        ("ours=runs/a,runs/b", "ours", ["runs/a", "runs/b"]),
        ("lr=1e-5 = runs/a", "lr=1e-5", ["runs/a"]),
    ],
)
def test_group_is_parsed(text: str, label: str | None, runs: list[str]) -> None:
    assert parse_group(text) == (label, runs)


@pytest.mark.parametrize("text", ["", "a,,b", "=a", "ours="])
def test_empty_label_or_run_is_refused(text: str) -> None:
    with pytest.raises(PlotError, match="empty; allowed: RUN, RUN,RUN or LABEL=RUN,RUN"):
        parse_group(text)


def test_empty_metric_name_is_refused() -> None:
    with pytest.raises(PlotError, match="a name is empty"):
        MetricNames.parse("reward/mean,")


@given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=4, max_size=4), min_size=1, max_size=4))
def test_mean_lies_within_the_band(values: list[list[float]]) -> None:
    runs = [
        run(f"run-{i}", *({"step": step, "reward/mean": value} for step, value in enumerate(each, 1)))
        for i, each in enumerate(values)
    ]
    curve = build_curve(RunGroup("group", runs), REWARD, Axis.STEP)
    for low, mean, high in zip(curve.lows, curve.means, curve.highs, strict=True):
        assert low - 1e-6 <= mean <= high + 1e-6
