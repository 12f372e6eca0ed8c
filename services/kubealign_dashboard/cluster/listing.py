"""Filtered, sorted pages of the cached jobs.

A page token is the sort key of its last job, so that jobs which are added, deleted or changed between two
pages shift nothing: the next page begins after that key.
"""

import base64
import hashlib
import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable

from kubealign.client.records import JobPage, ListQuery
from kubealign.errors import JobInvalid
from kubealign.kube.label_selector import parse_label_selector
from kubealign.spec.errors import SpecError
from kubealign_dashboard.cluster.cached_job import SORT_FIELDS, CachedJob, SortKey
from kubealign_dashboard.cluster.job_cache import JobCache


def list_page(cache: JobCache, query: ListQuery) -> JobPage:
    """Return a page of jobs.

    Raises:
        JobInvalid: The selector, the order or the token is invalid.
    """
    order, descending = query.sort.removeprefix("-"), query.sort.startswith("-")
    if order not in SORT_FIELDS:
        raise _invalid_query(
            "sort", query.sort, f"it may be {', '.join(SORT_FIELDS)}, with a leading - for descending"
        )
    matches = cache.in_order(order)
    for filter_ in _job_predicates(query):
        # Each filter applies to the result of the previous one.
        matches = [job for job in matches if filter_(job)]
    after = _decode_token(query)

    def key_of(job: CachedJob) -> SortKey:
        return job.sort_key(order)

    if descending:
        end = len(matches) if after is None else bisect_left(matches, after, key=key_of)
        shown, has_more = matches[max(0, end - query.limit) : end][::-1], end > query.limit
    else:
        start = 0 if after is None else bisect_right(matches, after, key=key_of)
        shown, has_more = matches[start : start + query.limit], start + query.limit < len(matches)
    return JobPage(
        jobs=[job.record for job in shown],
        next=_encode_token(query, key_of(shown[-1])) if has_more else "",
        total=len(matches),
        resource_version=str(cache.version),
    )


def _job_predicates(query: ListQuery) -> list[Callable[[CachedJob], bool]]:
    """Return the conditions that a listed job meets, all of them.

    They only select: the caller may list `query.namespace`, or else `query.namespaces` (empty: all).
    """
    predicates: list[Callable[[CachedJob], bool]] = []
    namespaces = query.namespaces if query.namespace is None else {query.namespace}
    if namespaces:
        predicates.append(lambda job: job.ref.namespace in namespaces)
    if query.phases:
        predicates.append(lambda job: job.phase in query.phases)
    if query.algorithms:
        predicates.append(lambda job: job.algorithm in query.algorithms)
    if query.search:
        text = query.search.lower()
        # Names in Kubernetes have no capital letters.
        predicates.append(lambda job: text in job.ref.name)
    if query.label_selector:
        matches_labels = parse_label_selector(query.label_selector)
        predicates.append(lambda job: matches_labels(job.labels))
    return predicates


def _encode_token(query: ListQuery, last: SortKey) -> str:
    text = json.dumps([_query_digest(query), *last])
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _decode_token(query: ListQuery) -> SortKey | None:
    if not query.after:
        return None
    try:
        padded = query.after + "=" * (-len(query.after) % 4)
        digest, value, namespace, name = json.loads(base64.urlsafe_b64decode(padded.encode()))
    except (ValueError, TypeError) as error:
        raise _invalid_query("continue", query.after, "it must be what the page before gave") from error
    number = query.sort.removeprefix("-") in ("step", "reward")
    fits = isinstance(value, int | float) if number else isinstance(value, str)
    if not fits or not isinstance(namespace, str) or not isinstance(name, str):
        raise _invalid_query("continue", query.after, "it must be what the page before gave")
    if digest != _query_digest(query):
        raise _invalid_query("continue", query.after, "it belongs to another query: start without a token")
    return value, namespace, name


def _query_digest(query: ListQuery) -> str:
    """Hash the query. Page size and visible namespaces may change between pages and are excluded."""
    parts = [
        query.namespace,
        query.label_selector,
        query.search,
        sorted(query.phases),
        sorted(query.algorithms),
        query.sort,
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def _invalid_query(field: str, value: str, problem: str) -> JobInvalid:
    return JobInvalid(
        f"{field} held {value!r}: {problem}", [SpecError(message=problem, path=field, value=repr(value))]
    )
