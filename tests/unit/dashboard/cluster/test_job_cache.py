"""The job cache, for any order of updates."""

import asyncio
import random

from kubealign.client.records import JobRecord, JobRef
from kubealign_dashboard.cluster.cached_job import SORT_FIELDS
from kubealign_dashboard.cluster.job_cache import JobCache
from support.job_items import item

REF = JobRef("team", "a")


def test_the_newer_version_wins() -> None:
    cache = JobCache()
    cache.put(item("a", version=5, step=2))
    cache.put(item("a", version=4, step=1))
    cache.remove(item("a", version=4))
    job = cache.get(REF)
    assert job is not None and job.step == 2
    cache.remove(item("a", version=6))
    assert cache.get(REF) is None
    assert cache.namespaces() == []


def test_documents_are_complete_without_managed_fields() -> None:
    cache = JobCache()
    batches = item("a", labels={"x": "y"}, phase="Running")
    batches["metadata"]["annotations"] = {
        "kubectl.kubernetes.io/last-applied-configuration": "{}",
        "mine": "1",
    }
    cache.put(batches)
    job = cache.get(REF)
    assert job is not None
    record = job.record
    assert record.resource["apiVersion"] == "kubealign.dev/v1alpha1"
    assert record.resource["kind"] == "AlignmentJob"
    assert "managedFields" not in record.metadata
    assert record.metadata["annotations"] == {"mine": "1"}
    assert (record.algorithm, record.labels, record.phase) == ("ppo", {"x": "y"}, "Running")


def test_a_list_removes_missing_older_jobs_only() -> None:
    cache = JobCache()
    for name, version in (("a", 1), ("b", 2), ("c", 9)):
        cache.put(item(name, version=version))
    cache.put(item("a", "other", version=1))
    cache.sweep("team", {"uid-team-b"}, listed_version=5)
    left = [job.ref.name for job in cache.in_order("name")]
    assert left == ["a", "b", "c"]
    assert cache.get(REF) is None and cache.count("team") == 2 and cache.count("other") == 1


def test_a_late_answer_does_not_restore_a_deleted_job() -> None:
    cache = JobCache()
    cache.put(item("a", version=3))
    cache.remove(item("a", version=7))
    cache.advance_to(None, 7)
    cache.record_write(item("a", version=6))
    assert cache.get(REF) is None
    cache.record_write(item("a", version=8))
    assert cache.get(REF) is not None


def test_indexes_stay_sorted_and_complete_under_any_changes() -> None:
    chance = random.Random(7)
    cache, job = JobCache(), {}
    for version in range(1, 3000):
        name = f"job-{chance.randrange(60)}"
        if name in job and chance.random() < 0.3:
            cache.remove(item(name, version=version))
            del job[name]
            continue
        reward = chance.choice([None, 0.0, -1.5, float("nan"), chance.random()])
        phase = chance.choice(["", "Running", "Failed"])
        job[name] = item(
            name,
            version=version,
            created=str(chance.random()),
            step=chance.choice([None, 3, 9]),
            reward=reward,
            phase=phase,
        )
        cache.put(job[name])
    assert len(cache) == len(job)
    for order in SORT_FIELDS:
        listed = cache.in_order(order)
        places = [each.sort_key(order) for each in listed]
        assert places == sorted(places)
        assert {each.ref.name: each.version for each in listed} == {
            name: int(batches["metadata"]["resourceVersion"]) for name, batches in job.items()
        }


async def test_a_watch_yields_the_newest_state_and_ends_with_the_job() -> None:
    cache = JobCache()
    cache.put(item("a", version=1, step=1))
    watch = cache.watch(REF)
    assert (await anext(watch)).status.step == 1
    for version in range(2, 50):
        cache.put(item("a", version=version, step=version))
    # A slow watcher gets the latest state, not every one.
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


async def test_repeated_changes_are_merged() -> None:
    cache = JobCache()
    cache.put(item("before"))
    feed = cache.changes()
    batches = asyncio.ensure_future(anext(feed))
    await asyncio.sleep(0)
    for version in range(1, 20):
        cache.put(item("a", version=version, step=version))
    cache.put(item("b", version=20))
    cache.remove(item("b", version=21))
    some = await batches
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
