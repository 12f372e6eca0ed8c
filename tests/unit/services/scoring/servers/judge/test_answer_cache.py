"""Answers that are shared and kept."""

import asyncio

import pytest

from kubealign_services.scoring.servers.judge.answer_cache import AnswerCache


class Asker:
    """Counts its calls; they end once `may_end` is set."""

    def __init__(self) -> None:
        self.calls = 0
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.fails = False

    async def __call__(self) -> int:
        self.calls += 1
        number = self.calls
        await self.may_end.wait()
        if self.fails:
            raise ValueError("failed")
        return number


async def test_the_least_recently_used_answer_is_dropped() -> None:
    cache, ask = AnswerCache[int](2), Asker()
    assert [await cache.get(key, ask) for key in "abab"] == [(1, False), (2, False), (1, True), (2, True)]
    assert [await cache.get(key, ask) for key in "aca"] == [(1, True), (3, False), (1, True)]
    assert await cache.get("b", ask) == (4, False)


async def test_calls_at_the_same_time_share_an_answer() -> None:
    cache, ask = AnswerCache[int](0), Asker()
    ask.may_end.clear()
    calls = [asyncio.create_task(cache.get("a", ask)) for _ in range(3)]
    await asyncio.sleep(0)
    calls[0].cancel()
    ask.may_end.set()
    results = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert results[1:] == [(1, True), (1, True)]
    # With capacity 0 nothing is kept.
    assert await cache.get("a", ask) == (2, False)


async def test_failures_are_shared_and_not_kept() -> None:
    cache, ask = AnswerCache[int](2), Asker()
    ask.fails = True
    for result in await asyncio.gather(*(cache.get("a", ask) for _ in range(2)), return_exceptions=True):
        assert isinstance(result, ValueError)
    assert ask.calls == 1
    ask.fails = False
    assert await cache.get("a", ask) == (2, False)


async def test_close_ends_requests_that_nobody_waits_for() -> None:
    cache, ask = AnswerCache[int](2), Asker()
    ask.may_end.clear()
    waiting = asyncio.create_task(cache.get("a", ask))
    await asyncio.sleep(0)
    await cache.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting
