"""Jobs in pages, as a ListQuery asks for them.

The API server knows namespaces, labels and the order of names. For anything else every job that those leave
is read and looked at here; a page's end is remembered by its last job, so changes in between skip and repeat
nothing else.
"""

import asyncio
import base64
import binascii
import json
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kubealign.client.cluster_documents import whole
from kubealign.client.errors import JobInvalid, NotPossible
from kubealign.client.kubernetes_api import Json, KubernetesApi
from kubealign.client.kubernetes_resources import JOBS
from kubealign.client.records import JobPage, JobRecord, ListQuery
from kubealign.spec.errors import SpecError

#: More than this is not sorted on a client: a job is some kilobytes.
MOST_SORTED = 20_000
_PAGE = 500
_KEPT_SECONDS = 30.0
_BY_SERVER = "server"
_KEYS = ("name", "created", "phase", "step", "reward")


class Listing:
    """Pages of one cluster. What was read for a page is kept for those that follow it soon."""

    def __init__(self, api: KubernetesApi) -> None:
        self._api = api
        self._kept: _Kept | None = None

    async def page(self, query: ListQuery) -> JobPage:
        """Raises JobInvalid for a query that says what there is not, NotPossible where too many are found."""
        places = _places(query)
        try:
            if len(places) == 1 and _plain(query):
                return await _page_of_server(self._api, places[0], query)
            kept = await self._all(places, query)
        except JobInvalid as error:
            # Nothing else of a list can be wrong.
            raise _wrong("labelSelector", query.label_selector, f"cannot be read: {error}") from error
        found = page(kept.jobs, query, kept.version)
        self._kept = kept if found.next else None
        return found

    async def _all(self, places: list[str | None], query: ListQuery) -> "_Kept":
        asked = (tuple(places), query.label_selector)
        kept, now = self._kept, time.monotonic()
        if query.after and kept is not None and kept.asked == asked and now - kept.at < _KEPT_SECONDS:
            return kept
        found = await asyncio.gather(*(_all(self._api, place, query.label_selector) for place in places))
        jobs = [JobRecord(item) for items, _ in found for item in items]
        return _Kept(asked, jobs, found[0][1] if len(found) == 1 else "", now)


@dataclass(frozen=True)
class _Kept:
    asked: tuple[tuple[str | None, ...], str]
    jobs: list[JobRecord]
    version: str
    at: float


def _places(query: ListQuery) -> list[str | None]:
    if query.namespace is None and query.namespaces:
        return [*sorted(query.namespaces)]
    return [query.namespace]


def page(jobs: Iterable[JobRecord], query: ListQuery, version: str = "") -> JobPage:
    """Of all jobs in memory, those that the query wants; labels and namespaces count as looked at."""
    name, down = query.sort.removeprefix("-"), query.sort.startswith("-")
    if name not in _KEYS:
        raise _wrong("sort", query.sort, f"must be one of {', '.join(_KEYS)}, with or without - before it")
    if query.limit < 1:
        raise _wrong("limit", str(query.limit), "must be at least 1")
    wanted = sorted((job for job in jobs if _wanted(job, query)), key=lambda job: _place(job, name))
    if down:
        wanted.reverse()
    rest: Sequence[JobRecord] = wanted
    if query.after:
        last = _read(query.after, query.sort)
        rest = [job for job in wanted if (_place(job, name) < last if down else _place(job, name) > last)]
    here = rest[: query.limit]
    more = _told({"sort": query.sort, "last": _place(here[-1], name)}) if len(rest) > len(here) else ""
    return JobPage(here, more, len(wanted), version)


def _plain(query: ListQuery) -> bool:
    """Nothing but what the API server can do."""
    return query.sort == "name" and not (query.search or query.phases or query.algorithms)


async def _page_of_server(api: KubernetesApi, namespace: str | None, query: ListQuery) -> JobPage:
    asked = _selected(query.label_selector) | {"limit": query.limit}
    if query.after:
        asked["continue"] = str(_unpacked(query.after).get(_BY_SERVER) or "")
    told = await api.list(JOBS.collection(namespace), asked)
    metadata = told.get("metadata") or {}
    jobs = [whole(item) for item in told.get("items") or ()]
    left = metadata.get("remainingItemCount")
    total = None
    if not query.after:
        total = len(jobs) + int(left or 0) if left is not None or not metadata.get("continue") else None
    following = metadata.get("continue")
    return JobPage(
        [JobRecord(job) for job in jobs],
        _told({_BY_SERVER: following}) if following else "",
        total,
        str(metadata.get("resourceVersion") or ""),
    )


async def _all(api: KubernetesApi, namespace: str | None, labels: str) -> tuple[list[Json], str]:
    items: list[Json] = []
    asked = _selected(labels) | {"limit": _PAGE}
    while True:
        told = await api.list(JOBS.collection(namespace), asked)
        items += map(whole, told.get("items") or ())
        metadata = told.get("metadata") or {}
        if not metadata.get("continue"):
            return items, str(metadata.get("resourceVersion") or "")
        if len(items) >= MOST_SORTED:
            raise NotPossible(
                f"there are more than {MOST_SORTED} jobs, which are not sorted and searched here: name a "
                "namespace or labels, or sort by name without any search"
            )
        asked["continue"] = metadata["continue"]


def _selected(labels: str) -> dict[str, str | int]:
    return {"labelSelector": labels} if labels else {}


def _wanted(job: JobRecord, query: ListQuery) -> bool:
    return (
        query.search.lower() in job.name.lower()
        and (not query.phases or str(job.phase or "Pending") in query.phases)
        and (not query.algorithms or job.algorithm in query.algorithms)
    )


def _place(job: JobRecord, sort: str) -> list[Any]:
    """Where a job stands: what is sorted by, then what no other job has. JSON keeps it as it is."""
    status = job.resource.get("status") or {}
    held: dict[str, Any] = {
        "name": "",
        "created": str(job.metadata.get("creationTimestamp") or ""),
        "phase": str(status.get("phase") or ""),
        "step": int(status.get("step") or 0),
        # Jobs without a reward come before all others, so that they are last where the greatest are first.
        "reward": [0, 0.0] if status.get("reward") is None else [1, float(status["reward"])],
    }
    return [held[sort], job.name, job.namespace]


def _told(position: dict[str, Any]) -> str:
    return base64.urlsafe_b64encode(json.dumps(position, separators=(",", ":")).encode()).decode().rstrip("=")


def _unpacked(after: str) -> dict[str, Any]:
    try:
        held = json.loads(base64.urlsafe_b64decode(after + "=" * (-len(after) % 4)))
    except (binascii.Error, ValueError):
        held = None
    if not isinstance(held, dict):
        raise _wrong("continue", after, "is none that a page before gave: begin with the first page")
    return held


def _read(after: str, sort: str) -> list[Any]:
    held = _unpacked(after)
    last = held.get("last")
    if held.get("sort") != sort or not isinstance(last, list) or len(last) != 3:
        raise _wrong(
            "continue", after, "comes from a list that was asked for otherwise: begin with the first page"
        )
    return last


def _wrong(field: str, held: str, text: str) -> JobInvalid:
    return JobInvalid(f"{field}: {text} (it holds {held})", [SpecError(text, field, held)])
