"""What is remembered of jobs, whatever order it is told in."""

import asyncio
import random

from kubealign.client.records import JobRecord, JobRef
from kubealign_services.dashboard.cluster.cache import JobCache
from kubealign_services.dashboard.cluster.entry import ORDERS
from support.job_items import item

REF = JobRef("team", "a")


def test_the_newer_stays() -> None:
    cache = JobCache()
    cache.put(item("a", version=5, step=2))
    cache.put(item("a", version=4, step=1))
    cache.remove(item("a", version=4))
    held = cache.get(REF)
    assert held is not None and held.step == 2
    cache.remove(item("a", version=6))
    assert cache.get(REF) is None
    assert cache.namespaces() == []


def test_a_document_is_told_whole_but_for_who_wrote_it() -> None:
    cache = JobCache()
    told = item("a", labels={"x": "y"}, phase="Running")
    told["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": "{}", "mine": "1"}
    cache.put(told)
    held = cache.get(REF)
    assert held is not None
    record = held.record
    assert record.resource["apiVersion"] == "kubealign.dev/v1alpha1"
    assert record.resource["kind"] == "AlignmentJob"
    assert "managedFields" not in record.metadata
    assert record.metadata["annotations"] == {"mine": "1"}
    assert (record.algorithm, record.labels, record.phase) == ("ppo", {"x": "y"}, "Running")


def test_a_list_removes_what_it_lacks_and_is_older() -> None:
    cache = JobCache()
    for name, version in (("a", 1), ("b", 2), ("c", 9)):
        cache.put(item(name, version=version))
    cache.put(item("a", "other", version=1))
    cache.sweep("team", {"uid-team-b"}, reached=5)
    left = [held.ref.name for held in cache.ordered("name")]
    assert left == ["a", "b", "c"]
    assert cache.get(REF) is None and cache.count("team") == 2 and cache.count("other") == 1


def test_an_answer_that_comes_after_the_watch_brings_nothing_back() -> None:
    cache = JobCache()
    cache.put(item("a", version=3))
    cache.remove(item("a", version=7))
    cache.reach(None, 7)
    cache.answered(item("a", version=6))
    assert cache.get(REF) is None
    cache.answered(item("a", version=8))
    assert cache.get(REF) is not None


def test_orders_stay_sorted_and_whole_under_any_changes() -> None:
    chance = random.Random(7)
    cache, held = JobCache(), {}
    for version in range(1, 3000):
        name = f"job-{chance.randrange(60)}"
        if name in held and chance.random() < 0.3:
            cache.remove(item(name, version=version))
            del held[name]
            continue
        reward = chance.choice([None, 0.0, -1.5, float("nan"), chance.random()])
        phase = chance.choice(["", "Running", "Failed"])
        held[name] = item(
            name,
            version=version,
            created=str(chance.random()),
            step=chance.choice([None, 3, 9]),
            reward=reward,
            phase=phase,
        )
        cache.put(held[name])
    assert len(cache) == len(held)
    for order in ORDERS:
        found = cache.ordered(order)
        places = [each.place(order) for each in found]
        assert places == sorted(places)
        assert {each.ref.name: each.version for each in found} == {
            name: int(told["metadata"]["resourceVersion"]) for name, told in held.items()
        }


async def test_a_watch_tells_the_newest_and_ends_with_the_job() -> None:
    cache = JobCache()
    cache.put(item("a", version=1, step=1))
    watch = cache.watch(REF)
    assert (await anext(watch)).status.step == 1
    for version in range(2, 50):
        cache.put(item("a", version=version, step=version))
    # Somebody slow gets the last state, not each.
    assert (await anext(watch)).status.step == 49
    cache.put(item("b", version=60))
    cache.remove(item("a", version=61))
    assert [record async for record in watch] == []
    assert not cache._listeners


async def test_a_watch_ends_when_another_job_takes_the_name() -> None:
    cache = JobCache()
    cache.put(item("a", version=1))
    watch = cache.watch(REF)
    await anext(watch)
    cache.remove(item("a", version=2))
    cache.put(item("a", version=3, uid="another"))
    assert [record async for record in watch] == []


async def test_changes_are_told_once_however_often_they_come() -> None:
    cache = JobCache()
    cache.put(item("before"))
    feed = cache.changes()
    told = asyncio.ensure_future(anext(feed))
    await asyncio.sleep(0)
    for version in range(1, 20):
        cache.put(item("a", version=version, step=version))
    cache.put(item("b", version=20))
    cache.remove(item("b", version=21))
    some = await told
    assert [each.status.step if isinstance(each, JobRecord) else each for each in some] == [
        19,
        JobRef("team", "b"),
    ]
    waits = asyncio.ensure_future(anext(feed))
    await asyncio.sleep(0)
    assert not waits.done()
    waits.cancel()
    await asyncio.wait([waits])
    assert not cache._feeds
