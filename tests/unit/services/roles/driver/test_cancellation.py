"""Cancellation of work by watches: the first to end decides, and no task is left running."""

import asyncio

import pytest

from kubealign_services.roles.driver.cancellation import run_until_any

pytestmark = pytest.mark.timeout(20)


class Lost(Exception):
    pass


async def never() -> None:
    await asyncio.Event().wait()


async def lose() -> None:
    await asyncio.sleep(0.01)
    raise Lost


async def seven() -> int:
    return 7


async def test_finished_work_returns_its_result() -> None:
    before = asyncio.all_tasks()
    assert await run_until_any(seven(), never(), lose()) == 7
    assert asyncio.all_tasks() == before


async def test_a_watch_that_raises_cancels_the_work() -> None:
    before = asyncio.all_tasks()
    with pytest.raises(Lost):
        await run_until_any(never(), never(), lose())
    assert asyncio.all_tasks() == before


async def test_an_error_of_the_work_is_raised() -> None:
    with pytest.raises(Lost):
        await run_until_any(lose(), never())


async def test_work_that_swallows_a_cancellation_is_still_ended() -> None:
    """A loop around `asyncio.wait_for` in Python 3.11 is an example."""

    async def stubborn() -> None:
        try:
            await never()
        except asyncio.CancelledError:
            await never()

    with pytest.raises(Lost):
        await run_until_any(stubborn(), lose())


async def test_cancelling_it_cancels_the_work() -> None:
    before = asyncio.all_tasks()
    waiting = asyncio.create_task(run_until_any(never(), never()))
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert asyncio.all_tasks() == before
