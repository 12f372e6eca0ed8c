"""Work and its watches: whichever ends first decides, and nothing is left running."""

import asyncio

import pytest

from kubealign_services.driver.watched import unless

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


async def test_work_that_ends_gives_its_result() -> None:
    before = asyncio.all_tasks()
    assert await unless(seven(), never(), lose()) == 7
    assert asyncio.all_tasks() == before


async def test_a_watch_that_ends_gives_the_work_up() -> None:
    before = asyncio.all_tasks()
    with pytest.raises(Lost):
        await unless(never(), never(), lose())
    assert asyncio.all_tasks() == before


async def test_what_the_work_raises_is_raised() -> None:
    with pytest.raises(Lost):
        await unless(lose(), never())


async def test_work_that_keeps_a_cancellation_to_itself_is_ended_all_the_same() -> None:
    """As a loop around `asyncio.wait_for` may in Python 3.11."""

    async def stubborn() -> None:
        try:
            await never()
        except asyncio.CancelledError:
            await never()

    with pytest.raises(Lost):
        await unless(stubborn(), lose())


async def test_cancelling_it_cancels_the_work() -> None:
    before = asyncio.all_tasks()
    waiting = asyncio.create_task(unless(never(), never()))
    await asyncio.sleep(0.01)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert asyncio.all_tasks() == before
