"""The TTL cache."""

import asyncio

import pytest

from kubealign_dashboard.cluster.ttl_cache import TTLCache


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Source:
    """A source that returns its number of calls."""

    def __init__(self, seconds: float = 10.0) -> None:
        self.asked = 0
        self.seconds = seconds
        self.open = asyncio.Event()
        self.open.set()

    async def __call__(self) -> tuple[int, float]:
        self.asked += 1
        await self.open.wait()
        return self.asked, self.seconds


async def test_a_value_is_cached_for_its_ttl() -> None:
    clock, source = Clock(), Source()
    cache: TTLCache[str, int] = TTLCache(4, clock)
    assert [await cache.get("a", source) for _ in range(3)] == [1, 1, 1]
    clock.now = 9.9
    assert await cache.get("a", source) == 1
    clock.now = 10.0
    assert await cache.get("a", source) == 2


async def test_a_zero_ttl_is_not_cached() -> None:
    source = Source(seconds=-1.0)
    cache: TTLCache[str, int] = TTLCache(4, Clock())
    assert [await cache.get("a", source), await cache.get("a", source)] == [1, 2]
    assert not len(cache)


async def test_concurrent_requests_share_one_fetch_even_if_the_first_is_cancelled() -> None:
    source = Source()
    source.open.clear()
    cache: TTLCache[str, int] = TTLCache(4, Clock())
    tasks = [asyncio.create_task(cache.get("a", source)) for _ in range(20)]
    await asyncio.sleep(0)
    tasks[0].cancel()
    source.open.set()
    assert await asyncio.gather(*tasks[1:]) == [1] * 19


async def test_a_failure_reaches_all_waiters_and_is_not_cached() -> None:
    cache: TTLCache[str, int] = TTLCache(4, Clock())

    async def fails() -> tuple[int, float]:
        raise OSError("away")

    results = await asyncio.gather(*(cache.get("a", fails) for _ in range(3)), return_exceptions=True)
    assert [str(each) for each in results] == ["away"] * 3
    assert await cache.get("a", Source()) == 1


async def test_least_recently_used_entries_are_evicted() -> None:
    cache: TTLCache[int, int] = TTLCache(3, Clock())
    for key in range(3):
        await cache.get(key, Source())
    await cache.get(0, Source())
    await cache.get(9, Source())
    assert [cache.peek(key) is not None for key in (0, 1, 2, 9)] == [True, False, True, True]
    with pytest.raises(KeyError):
        await cache.get(1, _missing)


async def _missing() -> tuple[int, float]:
    raise KeyError("asked again")
