"""Parsing of a driver's progress; malformed values count as absent."""

import pytest

from kubealign_operator.controller.platform_redis.progress import parse_progress
from kubealign_operator.kube_views.observed_job import DriverProgress


def test_status_and_newest_metrics() -> None:
    status = {"step": "7", "max_steps": "10", "weight_version": "6", "waiting_for": "rollouts"}
    entries = [
        ("2-0", {"json": '{"reward/mean": 0.5}'}),
        ("1-0", {"json": '{"reward/mean": 0.25, "kl/reference": 0.125}'}),
    ]
    assert parse_progress(status, entries) == DriverProgress(7, 10, 6, 0.5, 0.125, "rollouts")


def test_no_number_of_steps_is_unknown() -> None:
    assert parse_progress({"step": "0", "max_steps": "0"}, []) == DriverProgress(step=0)


def test_no_report_is_no_progress() -> None:
    assert parse_progress({}, []) is None


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"reward/mean": "nan"}', '{"reward/mean": null}'])
def test_malformed_metrics_are_ignored(text: str) -> None:
    progress = parse_progress({"step": "x", "max_steps": "1e400"}, [("1-0", {"json": text})])
    assert progress == DriverProgress()
