"""Which of many jobs a query means, and which page of them. Pure; it needs no whole job, only what a list
is filtered and sorted by."""

import base64
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from kubealign.client.errors import JobInvalid
from kubealign.client.label_selector import label_selector
from kubealign.client.records import ListQuery
from kubealign.spec.errors import SpecError

MOST_LIMIT = 500


class Listed(Protocol):
    """What is known of each job. `created`: seconds since the epoch."""

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


J = TypeVar("J", bound=Listed)

_KEYS: Mapping[str, Callable[[Any], Any]] = {
    "name": lambda job: job.name,
    "created": lambda job: job.created,
    "phase": lambda job: job.phase,
    "step": lambda job: job.step,
    "reward": lambda job: float("-inf") if job.reward is None else job.reward,
}


@dataclass(frozen=True)
class Selected(Generic[J]):
    """One page. `next`: where the following one begins, empty at the end; `total`: all that match."""

    jobs: Sequence[J]
    next: str
    total: int


def select(jobs: Iterable[J], query: ListQuery) -> Selected[J]:
    """The page that the query asks for. A page begins after a place in the order, not after a number of jobs:
    nothing is skipped when others come or go meanwhile.

    Raises JobInvalid, naming the field of the query that is wrong."""
    if not 1 <= query.limit <= MOST_LIMIT:
        raise _invalid("limit", query.limit, f"must be a whole number from 1 to {MOST_LIMIT}")
    descending = query.sort.startswith("-")
    key = _KEYS.get(query.sort.removeprefix("-"))
    if key is None:
        known = ", ".join(_KEYS)
        raise _invalid("sort", query.sort, f"must be one of {known}, with - before it for the greatest first")
    found = list(filter(_meant(query), jobs)) if _narrow(query) else list(jobs)
    found.sort(key=lambda job: (job.namespace, job.name))
    found.sort(key=key, reverse=descending)
    start = _after(found, key, query) if query.after else 0
    page = found[start : start + query.limit]
    more = start + query.limit < len(found)
    return Selected(page, _cursor(query.sort, key(page[-1]), page[-1]) if more else "", len(found))


def _narrow(query: ListQuery) -> bool:
    return query.namespace is not None or any(
        (query.namespaces, query.label_selector, query.search, query.phases, query.algorithms)
    )


def _meant(query: ListQuery) -> Callable[[Listed], bool]:
    matches = label_selector(query.label_selector)
    search = query.search.lower()
    namespaces = query.namespaces if query.namespace is None else frozenset({query.namespace})

    def meant(job: Listed) -> bool:
        return (
            (not namespaces or job.namespace in namespaces)
            and (not query.phases or job.phase in query.phases)
            and (not query.algorithms or job.algorithm in query.algorithms)
            and search in job.name.lower()
            and matches(job.labels)
        )

    return meant


def _cursor(sort: str, value: Any, job: Listed) -> str:
    place = json.dumps([sort, value, job.namespace, job.name])
    return base64.urlsafe_b64encode(place.encode()).decode().rstrip("=")


def _after(found: Sequence[J], key: Callable[[Any], Any], query: ListQuery) -> int:
    """The index of the first job that comes after the place that the query names."""
    descending = query.sort.startswith("-")
    try:
        padded = query.after + "=" * (-len(query.after) % 4)
        sort, value, namespace, name = json.loads(base64.urlsafe_b64decode(padded))
        if sort != query.sort:
            raise ValueError(sort)
        place = (namespace, name)

        def passed(job: Listed) -> bool:
            here = key(job)
            if here == value:
                return (job.namespace, job.name) > place
            return bool(here < value if descending else here > value)

        return next((index for index, job in enumerate(found) if passed(job)), len(found))
    except (ValueError, TypeError):
        message = "is no place that an earlier page of this list, sorted like this, has ended at"
        raise _invalid("after", query.after, message) from None


def _invalid(field: str, held: object, message: str) -> JobInvalid:
    error = SpecError(message, field, str(held)[:60])
    return JobInvalid(str(error), [error])
