"""Guards against lost cancellations."""

import asyncio

import pytest

from kubealign_services.messaging.cancellation import ReraiseCancellation, run_with_timeout


async def swallows() -> str:
    """Swallow a cancellation, as wait_for of Python 3.11 does when the result arrives with it."""
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return "done all the same"
    raise AssertionError("never")


async def test_a_swallowed_cancellation_is_raised() -> None:
    reached = False

    async def work() -> None:
        nonlocal reached
        with ReraiseCancellation():
            assert await swallows() == "done all the same"
        reached = True

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not reached


async def test_an_earlier_cancellation_does_not_count() -> None:
    """Cleanup after a cancellation may use the bus."""

    async def work() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            with ReraiseCancellation():
                await asyncio.sleep(0)
        raise AssertionError("never")

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_failure_is_not_hidden() -> None:
    with pytest.raises(ValueError, match="real"), ReraiseCancellation():
        raise ValueError("real")


async def test_task_that_swallows_its_cancellation_is_cancelled_again() -> None:
    cancelled = 0

    async def stubborn() -> None:
        nonlocal cancelled
        while cancelled < 3:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled += 1

    async with asyncio.timeout(10):
        with pytest.raises(TimeoutError):
            await run_with_timeout(0.01, stubborn())
    assert cancelled == 3


async def test_run_with_timeout_returns_or_raises() -> None:
    async def fail() -> None:
        raise ValueError("real")

    assert await run_with_timeout(5, asyncio.sleep(0, result="x")) == "x"
    with pytest.raises(ValueError, match="real"):
        await run_with_timeout(5, fail())
