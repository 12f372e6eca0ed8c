"""Metrics of a step whose driver died before it had reported them."""

import json
from pathlib import Path

from kubealign_services.roles.driver.metrics.report import MetricsReport, append_lines

METRICS = {"reward/mean": 0.5, "seconds/step": 1.0}


def steps(path: Path) -> list[tuple[int, int]]:
    return [(line["step"], line["fence"]) for line in map(json.loads, path.read_text().splitlines())]


async def test_a_step_is_reported_once(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    first = MetricsReport(path, 1, [])
    first.write(1, METRICS)
    second = MetricsReport(path, 2, [])
    await second.write_recovered(1, METRICS)
    assert steps(path) == [(1, 1)]
    await second.write_recovered(2, METRICS)
    assert steps(path) == [(1, 1), (2, 2)]
    assert second.latest_metrics == METRICS


async def test_a_step_that_was_repeated_after_a_rollback_is_reported_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    first = MetricsReport(path, 1, [])
    for step in (1, 2, 3):
        first.write(step, METRICS)
    MetricsReport(path, 2, []).write(2, METRICS)
    await MetricsReport(path, 3, []).write_recovered(3, METRICS)
    assert steps(path)[-1] == (3, 3)


async def test_lines_of_validations_and_partial_lines_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    report = MetricsReport(path, 1, [])
    report.write(1, METRICS)
    report.write(2, {"validation/loss": 1.0})
    append_lines(path, '{"step": 2, "seconds/step"')
    await MetricsReport(path, 2, []).write_recovered(2, METRICS)
    assert json.loads(path.read_text().splitlines()[-1]) | {"time": 0} == {
        "step": 2, "fence": 2, "time": 0, **METRICS
    }  # fmt: skip


async def test_nothing_is_reported_after_a_rollback(tmp_path: Path) -> None:
    await MetricsReport(tmp_path / "metrics.jsonl", 2, []).write_recovered(3, {})
    assert not (tmp_path / "metrics.jsonl").exists()
