"""Exponential backoff."""

import itertools

import pytest

from kubealign.backoff import Backoff, restart_backoff, restart_delay


def test_delays_double_up_to_the_maximum() -> None:
    backoff = Backoff(0.1, 1.0, jitter=0.0)
    assert [backoff.next_delay() for _ in range(6)] == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.0, 1.0])


def test_reset_starts_again_with_the_initial_delay() -> None:
    backoff = Backoff(0.1, 1.0, jitter=0.0)
    for _ in range(4):
        backoff.next_delay()
    backoff.reset()
    assert backoff.next_delay() == pytest.approx(0.1)


def test_jitter_shortens_a_delay_by_at_most_its_fraction() -> None:
    backoff = Backoff(1.0, 8.0, jitter=0.5)
    expected = itertools.chain((1.0, 2.0, 4.0), itertools.repeat(8.0))
    delays = [(limit, backoff.next_delay()) for limit in itertools.islice(expected, 200)]
    assert all(limit / 2 <= delay <= limit for limit, delay in delays)
    assert len({delay for _, delay in delays}) > 100


def test_a_lower_limit_keeps_the_jitter() -> None:
    delays = [Backoff(1.0, 8.0).next_delay(at_least=7.0) for _ in range(200)]
    assert all(7.0 <= delay <= 7.5 for delay in delays)
    assert len(set(delays)) > 100
    assert Backoff(1.0, 8.0, jitter=0.0).next_delay(at_least=0.5) == 1.0


def test_many_retries_do_not_overflow() -> None:
    backoff = Backoff(0.1, 10.0, jitter=0.0)
    for _ in range(5000):
        delay = backoff.next_delay()
    assert delay == 10.0


def test_restarts_wait_from_half_a_second_to_30_seconds() -> None:
    backoff = restart_backoff()
    delays = [backoff.next_delay() for _ in range(8)]
    assert delays == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert delays == [restart_delay(restarts, healthy_seconds=0.0) for restarts in range(1, 9)]
