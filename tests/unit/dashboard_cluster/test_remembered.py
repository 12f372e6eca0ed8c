"""What is asked once, and for how long it holds."""

import asyncio

import pytest

from kubealign_services.dashboard.cluster.remembered import Remembered


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Source:
    """Answers with how often it was asked."""

    def __init__(self, seconds: float = 10.0) -> None:
        self.asked = 0
        self.seconds = seconds
        self.open = asyncio.Event()
        self.open.set()

    async def __call__(self) -> tuple[int, float]:
        self.asked += 1
        await self.open.wait()
        return self.asked, self.seconds


async def test_an_answer_holds_for_its_time() -> None:
    clock, source = Clock(), Source()
    held: Remembered[str, int] = Remembered(4, clock)
    assert [await held.get("a", source) for _ in range(3)] == [1, 1, 1]
    clock.now = 9.9
    assert await held.get("a", source) == 1
    clock.now = 10.0
    assert await held.get("a", source) == 2


async def test_no_answer_is_kept_that_holds_no_time() -> None:
    source = Source(seconds=-1.0)
    held: Remembered[str, int] = Remembered(4, Clock())
    assert [await held.get("a", source), await held.get("a", source)] == [1, 2]
    assert not len(held)


async def test_many_ask_once_and_the_first_may_go_away() -> None:
    source = Source()
    source.open.clear()
    held: Remembered[str, int] = Remembered(4, Clock())
    tasks = [asyncio.create_task(held.get("a", source)) for _ in range(20)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    source.open.set()
    assert await asyncio.gather(*tasks[1:]) == [1] * 19


async def test_a_failure_reaches_all_and_is_not_kept() -> None:
    held: Remembered[str, int] = Remembered(4, Clock())

    async def fails() -> tuple[int, float]:
        raise OSError("away")

    found = await asyncio.gather(*(held.get("a", fails) for _ in range(3)), return_exceptions=True)
    assert [str(each) for each in found] == ["away"] * 3
    assert await held.get("a", Source()) == 1


async def test_only_the_last_used_are_kept() -> None:
    held: Remembered[int, int] = Remembered(3, Clock())
    for key in range(3):
        await held.get(key, Source())
    await held.get(0, Source())
    await held.get(9, Source())
    assert [held.held(key) is not None for key in (0, 1, 2, 9)] == [True, False, True, True]
    with pytest.raises(KeyError):
        await held.get(1, _missing)


async def _missing() -> tuple[int, float]:
    raise KeyError("asked again")
