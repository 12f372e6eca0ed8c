"""Pages of jobs in memory."""

from typing import Any

import pytest

from kubealign.client.backends.cluster.listing import build_page
from kubealign.client.errors import JobInvalid
from kubealign.client.records import JobRecord, ListQuery


def job(name: str, **status: Any) -> JobRecord:
    created = f"2026-01-01T00:00:{len(name):02}Z"
    metadata = {"name": name, "namespace": "team", "creationTimestamp": created}
    return JobRecord({"metadata": metadata, "spec": {"algorithm": {"ppo": {}}}, "status": status})


def names(jobs: list[JobRecord], query: ListQuery) -> list[str]:
    """Return the names on all pages."""
    names_found: list[str] = []
    while True:
        page_names = build_page(jobs, query)
        names_found += [job_list.name for job_list in page_names.jobs]
        if not page_names.next:
            return names_found
        query = ListQuery(**{**query.__dict__, "after": page_names.next})


JOBS = [job("a", reward=1.0, step=2), job("bb", reward=-3.0), job("ccc", step=10), job("dddd", reward=0.0)]


@pytest.mark.parametrize(
    ("sort", "expected"),
    [
        ("name", ["a", "bb", "ccc", "dddd"]),
        ("-name", ["dddd", "ccc", "bb", "a"]),
        ("-created", ["dddd", "ccc", "bb", "a"]),
        ("-step", ["ccc", "a", "dddd", "bb"]),
        ("reward", ["ccc", "bb", "dddd", "a"]),
        ("-reward", ["a", "dddd", "bb", "ccc"]),
    ],
)
@pytest.mark.parametrize("limit", [1, 2, 10])
def test_pages_contain_every_job_once_in_order(sort: str, expected: list[str], limit: int) -> None:
    assert names(JOBS, ListQuery(sort=sort, limit=limit)) == expected


def test_changes_between_pages_skip_and_repeat_nothing() -> None:
    query = ListQuery(sort="name", limit=2)
    first = build_page(JOBS, query)
    assert first.total == 4
    # One job of the first page is deleted, one is created before the cursor and one after it.
    changed = [job("aa"), *JOBS[1:], job("cd")]
    second = build_page(changed, ListQuery(sort="name", limit=2, after=first.next))
    assert [job_list.name for job_list in second.jobs] == ["ccc", "cd"]


def test_job_without_status_is_pending() -> None:
    assert names([job("a"), job("b", phase="Running")], ListQuery(phases=frozenset({"Pending"}))) == ["a"]


@pytest.mark.parametrize(
    "query",
    [
        ListQuery(sort="age"),
        ListQuery(limit=0),
        ListQuery(after="%"),
        ListQuery(after="bnVsbA"),
        ListQuery(sort="name", after=build_page(JOBS, ListQuery(sort="-name", limit=1)).next),
    ],
)
def test_invalid_query_is_refused(query: ListQuery) -> None:
    with pytest.raises(JobInvalid) as caught:
        build_page(JOBS, query)
    assert caught.value.errors[0].path in ("sort", "limit", "continue")
