"""Busy shares and rates, by a clock that the test moves."""

import logging

import pytest

from kubealign_services.telemetry.logs import LastError
from kubealign_services.telemetry.rates import BusyShare, Rate


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_busy_share() -> None:
    clock = Clock()
    busy = BusyShare(clock)
    with busy.measure():
        clock.now += 1
    clock.now += 3
    assert busy.read_and_reset() == pytest.approx(0.25)
    clock.now += 5
    assert busy.read_and_reset() == 0.0


def test_work_in_progress_counts_up_to_now() -> None:
    clock = Clock()
    busy = BusyShare(clock)
    with busy.measure():
        clock.now += 2
        assert busy.read_and_reset() == pytest.approx(1.0)
        with busy.measure():
            clock.now += 1
        clock.now += 1
    clock.now += 2
    assert busy.read_and_reset() == pytest.approx(0.5)


def test_rate_of_growth() -> None:
    clock = Clock()
    rate = Rate(clock)
    clock.now += 5
    assert rate.per_second(50) == pytest.approx(10.0)
    clock.now += 2
    assert rate.per_second(50) == 0.0
    assert rate.per_second(60) == 0.0  # no time has passed


def test_last_error_ignores_warnings() -> None:
    last_error = LastError()
    log = logging.getLogger("test.last_error")
    log.addHandler(last_error)
    try:
        log.error("worker %s: %s", "rollout-1", "x" * 600)
        log.warning("slow")
    finally:
        log.removeHandler(last_error)
    assert last_error.text.startswith("worker rollout-1: xxx")
    assert len(last_error.text) == 500
