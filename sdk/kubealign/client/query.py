"""Filters, sorts and paginates jobs in memory.

Pure; works on the list fields alone, without full job documents.
"""

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from kubealign.client.errors import JobInvalid
from kubealign.client.records import ListQuery
from kubealign.kube.label_selector import parse_label_selector
from kubealign.spec.errors import SpecError

MAX_LIMIT = 500


class ListableJob(Protocol):
    """Fields of a job that lists are filtered and sorted by. `created` is in seconds since the epoch."""

    @property
    def namespace(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def labels(self) -> Mapping[str, str]: ...
    @property
    def phase(self) -> str: ...
    @property
    def algorithm(self) -> str: ...
    @property
    def created(self) -> float: ...
    @property
    def step(self) -> int: ...
    @property
    def reward(self) -> float | None: ...


J = TypeVar("J", bound=ListableJob)

_SORT_KEYS: Mapping[str, Callable[[Any], Any]] = {
    "name": lambda job: job.name,
    "created": lambda job: job.created,
    "phase": lambda job: job.phase,
    "step": lambda job: job.step,
    "reward": lambda job: float("-inf") if job.reward is None else job.reward,
}


@dataclass(frozen=True)
class SelectedPage(Generic[J]):
    """One page. `next` is the cursor of the next page, empty at the end; `total` counts all matching jobs."""

    jobs: Sequence[J]
    next: str
    total: int


def select_page(jobs: Iterable[J], query: ListQuery) -> SelectedPage[J]:
    """Return the requested page.

    A cursor is a position in the sort order, not a number of jobs, so no job is skipped when jobs are
    created or deleted between two pages.

    Raises:
        JobInvalid: Names the invalid field of the query.
    """
    if not 1 <= query.limit <= MAX_LIMIT:
        raise _invalid_query("limit", query.limit, f"must be a whole number from 1 to {MAX_LIMIT}")
    descending = query.sort.startswith("-")
    key = _SORT_KEYS.get(query.sort.removeprefix("-"))
    if key is None:
        names = ", ".join(_SORT_KEYS)
        raise _invalid_query(
            "sort", query.sort, f"must be one of {names}, with a leading - for descending order"
        )
    selected = list(filter(_make_filter(query), jobs)) if _has_filter(query) else list(jobs)
    selected.sort(key=lambda job: (job.namespace, job.name))
    selected.sort(key=key, reverse=descending)
    start = _index_after_cursor(selected, key, query) if query.after else 0
    page = selected[start : start + query.limit]
    has_more = start + query.limit < len(selected)
    return SelectedPage(
        page, _encode_cursor(query.sort, key(page[-1]), page[-1]) if has_more else "", len(selected)
    )


def _has_filter(query: ListQuery) -> bool:
    return query.namespace is not None or any(
        (query.namespaces, query.label_selector, query.search, query.phases, query.algorithms)
    )


def _make_filter(query: ListQuery) -> Callable[[ListableJob], bool]:
    matches = parse_label_selector(query.label_selector)
    search = query.search.lower()
    namespaces = query.namespaces if query.namespace is None else frozenset({query.namespace})

    def matches_query(job: ListableJob) -> bool:
        return (
            (not namespaces or job.namespace in namespaces)
            and (not query.phases or job.phase in query.phases)
            and (not query.algorithms or job.algorithm in query.algorithms)
            and search in job.name.lower()
            and matches(job.labels)
        )

    return matches_query


def _encode_cursor(sort: str, value: Any, job: ListableJob) -> str:
    position = json.dumps([sort, value, job.namespace, job.name])
    return base64.urlsafe_b64encode(position.encode()).decode().rstrip("=")


def _index_after_cursor(sorted_jobs: Sequence[J], key: Callable[[Any], Any], query: ListQuery) -> int:
    """Return the index of the first job after the position of the query's cursor."""
    descending = query.sort.startswith("-")
    try:
        padded = query.after + "=" * (-len(query.after) % 4)
        sort, value, namespace, name = json.loads(base64.urlsafe_b64decode(padded))
        if sort != query.sort:
            raise ValueError(sort)
        position = (namespace, name)

        def is_after(job: ListableJob) -> bool:
            job_value = key(job)
            if job_value == value:
                return (job.namespace, job.name) > position
            return bool(job_value < value if descending else job_value > value)

        return next((index for index, job in enumerate(sorted_jobs) if is_after(job)), len(sorted_jobs))
    except (ValueError, TypeError):
        message = "is not a cursor that an earlier page of this list, in this sort order, returned"
        raise _invalid_query("after", query.after, message) from None


def _invalid_query(field: str, value: object, message: str) -> JobInvalid:
    error = SpecError(message, field, str(value)[:60])
    return JobInvalid(str(error), [error])
