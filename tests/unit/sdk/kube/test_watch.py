"""List and watch that resumes after failures."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from kubealign.errors import Forbidden, Unavailable
from kubealign.kube.api import KubernetesApi
from kubealign.kube.errors import WatchExpired
from kubealign.kube.watch import list_all, watch_changes

Json = dict[str, Any]
Seen = list[tuple[str, str, bool]]


def item(uid: str, version: int) -> Json:
    return {"metadata": {"uid": uid, "resourceVersion": str(version)}}


def event(kind: str, uid: str, version: int) -> Json:
    return {"type": kind, "object": item(uid, version)}


@dataclass
class Server:
    """Fake API server that returns the given responses to lists and watches in turn and raises those that are
    errors. The last watch stays open.
    """

    lists: list[Any]
    watches: list[list[Any]] = field(default_factory=list)
    asked: list[Mapping[str, Any]] = field(default_factory=list)

    async def list(self, path: str, query: Mapping[str, Any]) -> Json:
        self.asked.append(dict(query))
        answer = self.lists.pop(0)
        if isinstance(answer, Exception):
            raise answer
        items, version, *following = answer
        return {"items": items, "metadata": {"resourceVersion": version, "continue": "".join(following)}}

    async def watch(self, path: str, query: Mapping[str, Any]) -> AsyncGenerator[Json]:
        self.asked.append(dict(query))
        if not self.watches:
            await asyncio.Event().wait()
        for answer in self.watches.pop(0):
            if isinstance(answer, Exception):
                raise answer
            yield answer

    async def seen(self, count: int, known: Mapping[str, Json] | None = None) -> Seen:
        """Return this many changes: uid, version, deleted."""
        changes: Seen = []
        async with (
            asyncio.timeout(30),
            aclosing(
                watch_changes(
                    cast(KubernetesApi, self), "/x", {}, known_objects=known, unavailable_timeout=0.5
                )
            ) as answer,
        ):
            async for change in answer:
                metadata = change.item["metadata"]
                changes.append((metadata["uid"], metadata["resourceVersion"], change.is_deleted))
                if len(changes) == count:
                    break
        return changes


async def test_every_page_is_read() -> None:
    server = Server([([item("a", 1)], "5", "more"), ([item("b", 2)], "5")])
    items, version = await list_all(cast(KubernetesApi, server), "/x", {"labelSelector": "l"})
    assert [known_item["metadata"]["uid"] for known_item in items] == ["a", "b"] and version == "5"
    assert server.asked[1] == {"labelSelector": "l", "limit": 500, "continue": "more"}


async def test_broken_watch_resumes_without_duplicates() -> None:
    first = [event("MODIFIED", "a", 6), event("BOOKMARK", "", 9), Unavailable("broken")]
    second = [event("MODIFIED", "a", 6), event("DELETED", "a", 11), event("ADDED", "b", 12)]
    server = Server([([item("a", 5)], "5")], [first, second])
    assert await server.seen(4) == [
        ("a", "5", False),
        ("a", "6", False),
        ("a", "11", True),
        ("b", "12", False),
    ]
    assert [request.get("resourceVersion") for request in server.asked] == [None, "5", "9"]


async def test_expired_watch_relists_changes() -> None:
    lists = [([item("a", 1), item("b", 2)], "5"), ([item("b", 2), item("c", 8)], "9")]
    server = Server(lists, [[WatchExpired("410")]])
    assert await server.seen(4) == [("a", "1", False), ("b", "2", False), ("a", "1", True), ("c", "8", False)]


async def test_known_objects_are_reported_when_changed_or_deleted() -> None:
    server = Server([([item("a", 1), item("b", 3)], "5")])
    known_objects = {"a": item("a", 1), "b": item("b", 2), "c": item("c", 1)}
    assert await server.seen(2, known_objects) == [("c", "1", True), ("b", "3", False)]


async def test_unavailable_after_timeout_and_forbidden_at_once() -> None:
    with pytest.raises(Forbidden):
        await Server([Forbidden("not you")]).seen(1)
    with pytest.raises(Unavailable):
        await Server([Unavailable("away")] * 50).seen(1)


async def test_a_server_that_stays_away_is_reported() -> None:
    down = [Unavailable("connection refused")]
    server = Server([([item("a", 1)], "1")], [list(down) for _ in range(1000)])
    with pytest.raises(Unavailable, match="connection refused"):
        await server.seen(2)
    # Delays of at least 0.05, 0.1, 0.2, 0.4 seconds fill the timeout of half a second.
    assert len(server.asked) <= 8


async def test_outages_that_end_do_not_add_up() -> None:
    """Each watch ends with an error after an event; together they last longer than the timeout."""
    watches = [[event("MODIFIED", "a", version), Unavailable("reset")] for version in range(2, 12)]
    server = Server([([item("a", 1)], "1")], watches)
    changes = await server.seen(11)
    assert [version for _, version, _ in changes] == [str(version) for version in range(1, 12)]
