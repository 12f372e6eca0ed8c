"""Calls of a server that fails: those that wait, and those that try it."""

import asyncio

import pytest

from kubealign_services.scoring.servers.circuit_breaker import (
    MAX_CONSECUTIVE_FAILURES,
    CircuitBreaker,
    CircuitOpen,
)


class Clock:
    """Time that a test sets; waiting for it takes no time."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def fail(breaker: CircuitBreaker, times: int = MAX_CONSECUTIVE_FAILURES) -> None:
    for _ in range(times):
        await breaker.enter(1.0)
        await breaker.leave(succeeded=False)


async def test_a_success_ends_the_failures_in_a_row() -> None:
    breaker = CircuitBreaker(Clock())
    await fail(breaker, MAX_CONSECUTIVE_FAILURES - 1)
    await breaker.enter(0)
    await breaker.leave(succeeded=True)
    await fail(breaker, MAX_CONSECUTIVE_FAILURES - 1)
    assert not breaker.is_open
    await fail(breaker, 1)
    assert breaker.is_open


async def test_a_call_that_may_not_wait_is_refused() -> None:
    clock = Clock()
    breaker = CircuitBreaker(clock)
    await fail(breaker)
    with pytest.raises(CircuitOpen, match="5 failures in a row, and none but failures for 0 s"):
        await breaker.enter(0)


async def test_one_call_at_a_time_tries_the_server_and_a_success_frees_the_others() -> None:
    clock = Clock()
    breaker = CircuitBreaker(clock)
    await fail(breaker)
    clock.now = 1.0
    await breaker.enter(60)
    others = [asyncio.create_task(breaker.enter(60)) for _ in range(3)]
    await asyncio.sleep(0.01)
    assert not any(other.done() for other in others)
    await breaker.leave(succeeded=True)
    async with asyncio.timeout(10):
        await asyncio.gather(*others)


async def test_pauses_between_trials_double() -> None:
    clock = Clock()
    breaker = CircuitBreaker(clock)
    await fail(breaker)
    for pause in (1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0):
        clock.now += pause - 0.001
        with pytest.raises(CircuitOpen):
            await breaker.enter(0)
        clock.now += 0.001
        await breaker.enter(0)
        await breaker.leave(succeeded=False)


async def test_pauses_begin_anew_after_a_success() -> None:
    clock = Clock()
    breaker = CircuitBreaker(clock)
    await fail(breaker)
    for _ in range(3):
        clock.now += 30
        await breaker.enter(0)
        await breaker.leave(succeeded=False)
    clock.now += 30
    await breaker.enter(0)
    await breaker.leave(succeeded=True)
    await fail(breaker)
    clock.now += 1.0
    await breaker.enter(0)


async def test_a_cancelled_trial_lets_another_one_try() -> None:
    clock = Clock()
    breaker = CircuitBreaker(clock)
    await fail(breaker)
    clock.now = 1.0
    await breaker.enter(60)
    waiting = asyncio.create_task(breaker.enter(60))
    await asyncio.sleep(0.01)
    await breaker.leave(succeeded=None)
    async with asyncio.timeout(10):
        await waiting
    assert breaker.is_open
