"""Pages of the cached jobs: filters, sort orders and stable continuation."""

import json
from base64 import urlsafe_b64encode
from dataclasses import replace

import pytest

from kubealign.client.errors import JobInvalid
from kubealign.client.records import JobPage, ListQuery
from kubealign_dashboard.cluster.job_cache import JobCache
from kubealign_dashboard.cluster.listing import list_page
from support.job_items import item

PHASES = ("Running", "Failed", "Succeeded")


@pytest.fixture
def cache() -> JobCache:
    new_cache = JobCache()
    for number in range(30):
        new_cache.put(
            item(
                f"job-{number:02}",
                "team" if number % 2 else "other",
                version=number + 1,
                created=f"2026-01-01T00:00:{number:02}Z",
                algorithm="ppo" if number % 3 else "sft",
                labels={"tier": "gold"} if number < 10 else {},
                phase=PHASES[number % 3],
                step=number,
                # Some jobs have no reward yet.
                **({"reward": number / 10} if number > 5 else {}),
            )
        )
    return new_cache


def names(page: JobPage) -> list[str]:
    return [record.name for record in page.jobs]


def all_of(cache: JobCache, query: ListQuery) -> list[str]:
    listed, after = [], ""
    while True:
        job = list_page(cache, replace(query, after=after))
        assert len(job.jobs) <= query.limit
        listed += names(job)
        after = job.next
        if not after:
            return listed


@pytest.mark.parametrize(
    "sort", ["name", "-name", "created", "-created", "phase", "-step", "reward", "-reward"]
)
@pytest.mark.parametrize("limit", [1, 7, 30, 50])
def test_pages_form_the_complete_sorted_list(cache: JobCache, sort: str, limit: int) -> None:
    listed = all_of(cache, ListQuery(sort=sort, limit=limit))
    complete = [job.ref.name for job in cache.in_order(sort.removeprefix("-"))]
    assert listed == (complete[::-1] if sort.startswith("-") else complete)


def test_jobs_without_a_reward_come_last_in_descending_order(cache: JobCache) -> None:
    listed = names(list_page(cache, ListQuery(sort="-reward", limit=30)))
    assert listed[0] == "job-29"
    assert set(listed[-6:]) == {f"job-0{number}" for number in range(6)}


@pytest.mark.parametrize(
    ("query", "numbers"),
    [
        (ListQuery(namespace="team"), range(1, 30, 2)),
        (ListQuery(namespaces=frozenset({"team"})), range(1, 30, 2)),
        (ListQuery(namespaces=frozenset({"team", "other", "none"})), range(30)),
        (ListQuery(namespace="none"), []),
        (ListQuery(search="JOB-1"), range(10, 20)),
        (ListQuery(phases=frozenset({"Failed", "Running"})), [n for n in range(30) if n % 3 < 2]),
        (ListQuery(algorithms=frozenset({"sft"})), range(0, 30, 3)),
        (ListQuery(label_selector="tier in (gold)"), range(10)),
        (ListQuery(namespace="other", algorithms=frozenset({"sft"}), label_selector="!tier"), [12, 18, 24]),
    ],
)
def test_filters_and_the_total(cache: JobCache, query: ListQuery, numbers: range) -> None:
    expected = [f"job-{number:02}" for number in numbers]
    job = list_page(cache, replace(query, sort="name", limit=4))
    assert names(job) == expected[:4]
    assert job.total == len(expected)
    assert all_of(cache, replace(query, sort="name", limit=4)) == expected


def test_continuation_is_stable_under_changes(cache: JobCache) -> None:
    query = ListQuery(sort="-created", limit=10)
    first = list_page(cache, query)
    assert names(first)[-1] == "job-20"
    for gone in ("job-20", "job-19"):
        namespace = "team" if int(gone[-2:]) % 2 else "other"
        cache.remove(item(gone, namespace, version=100))
    cache.put(item("newer", version=101, created="2026-02-01T00:00:00Z"))
    second = list_page(cache, replace(query, after=first.next))
    assert names(second) == [f"job-{number:02}" for number in range(18, 8, -1)]
    assert second.total == 29


def test_a_token_is_valid_for_its_query_only(cache: JobCache) -> None:
    token = list_page(cache, ListQuery(limit=3)).next
    list_page(cache, ListQuery(limit=9, after=token))
    with pytest.raises(JobInvalid, match="another query"):
        list_page(cache, ListQuery(limit=3, after=token, search="job"))


@pytest.mark.parametrize(
    "token",
    [
        "x",
        "%%%",
        "é",
        urlsafe_b64encode(b"[1, 2]").decode(),
        urlsafe_b64encode(b"{}").decode(),
        urlsafe_b64encode(b"\xff\xfe").decode(),
        urlsafe_b64encode(json.dumps(["d", 5, "team", "a"]).encode()).decode(),
        urlsafe_b64encode(json.dumps(["d", "2026", ["team"], "a"]).encode()).decode(),
    ],
)
def test_an_invalid_token_is_rejected(cache: JobCache, token: str) -> None:
    with pytest.raises(JobInvalid, match="continue held"):
        list_page(cache, ListQuery(after=token))


def test_an_unknown_order_is_rejected(cache: JobCache) -> None:
    with pytest.raises(JobInvalid, match="sort held 'colour'"):
        list_page(cache, ListQuery(sort="colour"))
