"""The reflector mirrors the server's objects, whatever the server does."""

import asyncio
from typing import Any

from aiohttp import web

from integration.operator.api_server import (
    Answer,
    Json,
    ScriptedServer,
    breaks,
    next_of,
    refuses,
    says,
    streams,
)
from kubealign.kube.resources import PODS
from kubealign_operator.controller.kube.api import Api
from kubealign_operator.controller.kube.reflector import Reflector, Scope
from kubealign_operator.controller.metrics import OperatorMetrics


class RecordingStore:
    """A store that records its calls."""

    def __init__(self, until: int) -> None:
        self.items: dict[str, int] = {}
        self.reached = asyncio.Event()
        self._until = until

    def put(self, item: Json) -> None:
        self.items[item["metadata"]["uid"]] = int(item["metadata"]["resourceVersion"])

    def remove(self, item: Json) -> None:
        self.items.pop(item["metadata"]["uid"], None)

    def sweep(self, namespace: str | None, uids: set[str], listed_version: int) -> None:
        self.items = {
            uid: version for uid, version in self.items.items() if uid in uids or version > listed_version
        }

    def advance_to(self, namespace: str | None, version: int) -> None:
        if version >= self._until:
            self.reached.set()


def _item(uid: str, version: int) -> Json:
    return {"metadata": {"uid": uid, "resourceVersion": str(version)}}


def _page(version: int, *items: Json, follows: str = "") -> Answer:
    metadata: dict[str, Any] = {"resourceVersion": str(version)}
    if follows:
        metadata["continue"] = follows
    return says({"metadata": metadata, "items": list(items)})


def _event(kind: str, item: Json) -> Json:
    return {"type": kind, "object": item}


_OPEN = streams(stays=True)


async def _followed(
    answers: list[Answer], until: int, resync: float = 600
) -> tuple[RecordingStore, list[str]]:
    """Return the stored objects and the requests once the store has reached a version."""
    stored, server = RecordingStore(until), ScriptedServer(answers)
    async with server as client:
        reflector = Reflector(
            Api(client, OperatorMetrics(), 5),
            Scope(PODS, "team", "a=b"),
            stored,
            OperatorMetrics(),
            resync_seconds=resync,
        )
        running = asyncio.create_task(reflector.run())
        try:
            async with asyncio.timeout(20):
                await stored.reached.wait()
        finally:
            running.cancel()
            await asyncio.wait([running])
    return stored, [path for _, path, _ in server.asked]


async def test_pages_then_events() -> None:
    stored, asked = await _followed(
        [
            _page(5, _item("a", 1), follows="more"),
            _page(5, _item("b", 2)),
            streams(
                _event("ADDED", _item("c", 6)),
                _event("MODIFIED", _item("a", 7)),
                _event("DELETED", _item("b", 8)),
                stays=True,
            ),
        ],
        until=8,
    )
    assert stored.items == {"a": 7, "c": 6}
    assert "labelSelector=a%3Db" in asked[0]
    assert "continue=more" in asked[1]
    assert "resourceVersion=5" in asked[2]
    assert "watch=1" in asked[2]


async def test_a_broken_watch_resumes() -> None:
    """A bookmark advances the resume point although no object changed."""
    stored, asked = await _followed(
        [
            _page(5, _item("a", 1)),
            streams(_event("BOOKMARK", _item("", 90))),
            breaks,
            refuses(500, "InternalError"),
            streams(_event("ADDED", _item("b", 91)), stays=True),
        ],
        until=91,
    )
    assert stored.items == {"a": 1, "b": 91}
    assert ["resourceVersion=90" in path for path in asked] == [False, False, True, True, True]


async def test_an_expired_watch_causes_a_list() -> None:
    """410 as response, and 410 as event."""
    gone = {"type": "ERROR", "object": {"code": 410, "reason": "Expired", "message": "too old"}}
    stored, asked = await _followed(
        [
            _page(5, _item("a", 1), _item("b", 2)),
            refuses(410, "Expired"),
            _page(20, _item("a", 1), _item("c", 15)),
            streams(gone),
            _page(30, _item("d", 25)),
            _OPEN,
        ],
        until=30,
    )
    assert stored.items == {"d": 25}
    assert sum("limit=" in path for path in asked) == 3


async def test_an_incomplete_list_removes_nothing() -> None:
    stored, _ = await _followed(
        [
            _page(5, _item("a", 1), follows="more"),
            refuses(410, "Expired"),
            refuses(429, "TooManyRequests", **{"Retry-After": "1"}),
            _page(9, _item("b", 8)),
            _OPEN,
        ],
        until=9,
    )
    assert stored.items == {"b": 8}


async def test_periodic_resync() -> None:
    """A resync finds what a watch has missed; a failed list does not stop the watch."""
    lists = [_page(5, _item("a", 1)), refuses(500, "InternalError"), _page(8, _item("b", 7))]
    watches = [streams(_event("BOOKMARK", _item("", 6))), streams(_event("ADDED", _item("b", 7)))]

    async def answer(request: web.Request) -> web.StreamResponse:
        # How many watches there are between two lists is chance: each has answers of its own.
        return await next_of(watches if "watch" in request.query else lists)(request)

    stored, asked = await _followed([answer], until=8, resync=0.05)
    assert stored.items == {"b": 7}
    listed = [at for at, path in enumerate(asked) if "limit=" in path]
    assert len(listed) >= 3
    assert listed[2] > listed[1] + 1
