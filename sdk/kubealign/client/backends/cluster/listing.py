"""Lists jobs in pages, as requested by a ListQuery.

The API server can filter by namespace and label and sort by name. For any other filter or order, all jobs
that match namespace and labels are read and processed by the client. A page cursor contains the sort key
of the page's last job, so concurrent changes neither skip nor repeat other jobs.
"""

import asyncio
import base64
import binascii
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kubealign.client.backends.cluster.documents import with_type_meta
from kubealign.client.errors import JobInvalid, NotPossible
from kubealign.client.records import JobPage, JobRecord, ListQuery
from kubealign.kube.api import Json, KubernetesApi
from kubealign.kube.resources import JOBS
from kubealign.spec.errors import SpecError

#: Largest number of jobs sorted by the client; each job is some kilobytes.
MAX_SORTED_JOBS = 20_000
_PAGE_SIZE = 500
_CACHE_SECONDS = 30.0
_SERVER_TOKEN = "server"
_SORT_FIELDS = ("name", "created", "phase", "step", "reward")


class JobLister:
    """Lists the jobs of one cluster. The jobs read for a page are cached briefly for the following pages."""

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api
        self._cache: _CachedJobs | None = None

    async def list_page(self, query: ListQuery) -> JobPage:
        """Return a page. Raises JobInvalid for an invalid query, NotPossible if too many jobs match."""
        namespaces = _namespaces(query)
        try:
            if len(namespaces) == 1 and _is_server_side(query):
                return await _list_server_page(self._api, namespaces[0], query)
            jobs_read = await self._list_matching(namespaces, query)
        except JobInvalid as error:
            # The label selector is the only part of a list request that can be invalid.
            raise _invalid_query(
                "labelSelector", query.label_selector, f"cannot be parsed: {error}"
            ) from error
        result = build_page(jobs_read.jobs, query, jobs_read.version)
        self._cache = jobs_read if result.next else None
        return result

    async def _list_matching(self, places: list[str | None], query: ListQuery) -> "_CachedJobs":
        key = (tuple(places), query.label_selector)
        cached, now = self._cache, time.monotonic()
        if query.after and cached is not None and cached.key == key and now - cached.read_at < _CACHE_SECONDS:
            return cached
        listings = await asyncio.gather(
            *(_list_all(self._api, namespace, query.label_selector) for namespace in places)
        )
        jobs = [JobRecord(item) for items, _ in listings for item in items]
        return _CachedJobs(key, jobs, listings[0][1] if len(listings) == 1 else "", now)


@dataclass(frozen=True)
class _CachedJobs:
    key: tuple[tuple[str | None, ...], str]
    jobs: list[JobRecord]
    version: str
    read_at: float


def _namespaces(query: ListQuery) -> list[str | None]:
    if query.namespace is None and query.namespaces:
        return [*sorted(query.namespaces)]
    return [query.namespace]


def build_page(jobs: Iterable[JobRecord], query: ListQuery, version: str = "") -> JobPage:
    """Return the requested page of jobs in memory; labels and namespaces are already filtered."""
    name, descending = query.sort.removeprefix("-"), query.sort.startswith("-")
    if name not in _SORT_FIELDS:
        raise _invalid_query(
            "sort", query.sort, f"must be one of {', '.join(_SORT_FIELDS)}, with or without - before it"
        )
    if query.limit < 1:
        raise _invalid_query("limit", str(query.limit), "must be at least 1")
    matching = sorted((job for job in jobs if _matches(job, query)), key=lambda job: _sort_key(job, name))
    if descending:
        matching.reverse()
    remaining: Sequence[JobRecord] = matching
    if query.after:
        last = _decode_sort_key(query.after, query.sort)
        remaining = [
            job
            for job in matching
            if (_sort_key(job, name) < last if descending else _sort_key(job, name) > last)
        ]
    page_jobs = remaining[: query.limit]
    cursor = (
        _encode_token({"sort": query.sort, "last": _sort_key(page_jobs[-1], name)})
        if len(remaining) > len(page_jobs)
        else ""
    )
    return JobPage(page_jobs, cursor, len(matching), version)


def _is_server_side(query: ListQuery) -> bool:
    """Return True if the API server can process the query by itself."""
    return query.sort == "name" and not (query.search or query.phases or query.algorithms)


async def _list_server_page(api: KubernetesApi, namespace: str | None, query: ListQuery) -> JobPage:
    list_query = _label_query(query.label_selector) | {"limit": query.limit}
    if query.after:
        list_query["continue"] = str(_decode_token(query.after).get(_SERVER_TOKEN) or "")
    response = await api.list(JOBS.collection_path(namespace), list_query)
    metadata = response.get("metadata") or {}
    jobs = [with_type_meta(item) for item in response.get("items") or ()]
    remaining = metadata.get("remainingItemCount")
    total = None
    if not query.after:
        total = (
            len(jobs) + int(remaining or 0) if remaining is not None or not metadata.get("continue") else None
        )
    following = metadata.get("continue")
    return JobPage(
        [JobRecord(job) for job in jobs],
        _encode_token({_SERVER_TOKEN: following}) if following else "",
        total,
        str(metadata.get("resourceVersion") or ""),
    )


async def _list_all(api: KubernetesApi, namespace: str | None, labels: str) -> tuple[list[Json], str]:
    items: list[Json] = []
    list_query = _label_query(labels) | {"limit": _PAGE_SIZE}
    while True:
        response = await api.list(JOBS.collection_path(namespace), list_query)
        items += map(with_type_meta, response.get("items") or ())
        metadata = response.get("metadata") or {}
        if not metadata.get("continue"):
            return items, str(metadata.get("resourceVersion") or "")
        if len(items) >= MAX_SORTED_JOBS:
            raise NotPossible(
                f"there are more than {MAX_SORTED_JOBS} jobs, too many for the client to sort and search: "
                "name a namespace or labels, or sort by name without any search"
            )
        list_query["continue"] = metadata["continue"]


def _label_query(labels: str) -> dict[str, str | int]:
    return {"labelSelector": labels} if labels else {}


def _matches(job: JobRecord, query: ListQuery) -> bool:
    return (
        query.search.lower() in job.name.lower()
        and (not query.phases or str(job.phase or "Pending") in query.phases)
        and (not query.algorithms or job.algorithm in query.algorithms)
    )


def _sort_key(job: JobRecord, sort: str) -> list[Any]:
    """Return the sort key of a job: the sorted field, then the unique name. It is JSON-serialisable."""
    status = job.resource.get("status") or {}
    keys: dict[str, Any] = {
        "name": "",
        "created": str(job.metadata.get("creationTimestamp") or ""),
        "phase": str(status.get("phase") or ""),
        "step": int(status.get("step") or 0),
        # Jobs without a reward sort before all others, so that they are last in descending order.
        "reward": [0, 0.0] if status.get("reward") is None else [1, float(status["reward"])],
    }
    return [keys[sort], job.name, job.namespace]


def _encode_token(position: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(position, separators=(",", ":")).encode()).decode().rstrip("=")


def _decode_token(after: str) -> dict[str, Any]:
    try:
        token = json.loads(base64.urlsafe_b64decode(after + "=" * (-len(after) % 4)))
    except (binascii.Error, ValueError):
        token = None
    if not isinstance(token, dict):
        raise _invalid_query(
            "continue", after, "is not a cursor of a previous page: begin with the first page"
        )
    return token


def _decode_sort_key(after: str, sort: str) -> list[Any]:
    token = _decode_token(after)
    last = token.get("last")
    if token.get("sort") != sort or not isinstance(last, list) or len(last) != 3:
        raise _invalid_query(
            "continue", after, "belongs to a list with another order: begin with the first page"
        )
    return last


def _invalid_query(field: str, value: str, text: str) -> JobInvalid:
    return JobInvalid(f"{field}: {text} (it holds {value})", [SpecError(text, field, value)])
