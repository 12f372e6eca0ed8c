"""Pages of the remembered jobs: found, sorted, and gone on with where the page before ended.

A page's token is the place of its last job, so jobs that come, go or change between two pages move
nothing: the next page begins after that place, whoever stands there now.
"""

import base64
import hashlib
import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable

from kubealign.client.errors import JobInvalid
from kubealign.client.label_selector import label_selector
from kubealign.client.records import JobPage, ListQuery
from kubealign.spec.errors import SpecError
from kubealign_services.dashboard.cluster.cache import JobCache
from kubealign_services.dashboard.cluster.entry import ORDERS, Entry, Place


def page(cache: JobCache, query: ListQuery) -> JobPage:
    """Raises JobInvalid for a selector, an order or a token that means nothing."""
    order, falling = query.sort.removeprefix("-"), query.sort.startswith("-")
    if order not in ORDERS:
        raise _bad("sort", query.sort, f"it may be {', '.join(ORDERS)}, or -name for the greatest first")
    found = cache.ordered(order)
    for test in _tests(query):
        # One test after the other, each on what the one before has left.
        found = [held for held in found if test(held)]
    after = _after(query)

    def place(held: Entry) -> Place:
        return held.place(order)

    if falling:
        end = len(found) if after is None else bisect_left(found, after, key=place)
        shown, follows = found[max(0, end - query.limit) : end][::-1], end > query.limit
    else:
        start = 0 if after is None else bisect_right(found, after, key=place)
        shown, follows = found[start : start + query.limit], start + query.limit < len(found)
    return JobPage(
        jobs=[held.record for held in shown],
        next=_token(query, place(shown[-1])) if follows else "",
        total=len(found),
        resource_version=str(cache.reached),
    )


def _tests(query: ListQuery) -> list[Callable[[Entry], bool]]:
    tests: list[Callable[[Entry], bool]] = []
    namespaces = query.namespaces if query.namespace is None else {query.namespace}
    if namespaces:
        tests.append(lambda held: held.ref.namespace in namespaces)
    if query.phases:
        tests.append(lambda held: held.phase in query.phases)
    if query.algorithms:
        tests.append(lambda held: held.algorithm in query.algorithms)
    if query.search:
        wanted = query.search.lower()
        # Names in Kubernetes have no capital letters.
        tests.append(lambda held: wanted in held.ref.name)
    if query.label_selector:
        labels = label_selector(query.label_selector)
        tests.append(lambda held: labels(held.labels))
    return tests


def _token(query: ListQuery, last: Place) -> str:
    text = json.dumps([_digest(query), *last])
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _after(query: ListQuery) -> Place | None:
    if not query.after:
        return None
    try:
        padded = query.after + "=" * (-len(query.after) % 4)
        digest, value, namespace, name = json.loads(base64.urlsafe_b64decode(padded.encode()))
    except (ValueError, TypeError) as error:
        raise _bad("continue", query.after, "it must be what the page before gave") from error
    number = query.sort.removeprefix("-") in ("step", "reward")
    fits = isinstance(value, int | float) if number else isinstance(value, str)
    if not fits or not isinstance(namespace, str) or not isinstance(name, str):
        raise _bad("continue", query.after, "it must be what the page before gave")
    if digest != _digest(query):
        raise _bad("continue", query.after, "it belongs to another query: begin without it")
    return value, namespace, name


def _digest(query: ListQuery) -> str:
    """Of what is asked for. The page's size, and the namespaces that the caller may see, may change on the
    way."""
    parts = [
        query.namespace,
        query.label_selector,
        query.search,
        sorted(query.phases),
        sorted(query.algorithms),
        query.sort,
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def _bad(field: str, held: str, why: str) -> JobInvalid:
    return JobInvalid(f"{field} held {held!r}: {why}", [SpecError(message=why, path=field, held=repr(held))])
