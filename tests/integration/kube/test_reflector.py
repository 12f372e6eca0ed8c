"""The reflector mirrors the server's objects, whatever the server does."""

import asyncio
import json
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from aiohttp import web

from integration.kube.api_server import (
    Answer,
    Json,
    ScriptedServer,
    breaks,
    next_of,
    refuses,
    says,
    sends,
    streams,
)
from kubealign.kube.api import ApiOptions, KubernetesApi
from kubealign.kube.documents import MAX_PAGE_BYTES
from kubealign.kube.errors import STATUS_ERRORS, USER_ERRORS, ErrorTranslation
from kubealign.kube.reflector import Reflector, ReflectorOptions, Scope
from kubealign.kube.resources import PODS, ApiResource
from support.deep_documents import nested


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


@pytest.fixture(params=[USER_ERRORS, STATUS_ERRORS], ids=["user errors", "status errors"])
def errors(request: pytest.FixtureRequest) -> ErrorTranslation:
    """Return the errors of the reflector's client."""
    translation: ErrorTranslation = request.param
    return translation


async def _followed(
    answers: list[Answer], errors: ErrorTranslation, until: int, resync: float = 600
) -> tuple[RecordingStore, list[str]]:
    """Return the stored objects and the requests once the store has reached a version."""
    stored, server = RecordingStore(until), ScriptedServer(answers)
    async with server as connections:
        api = KubernetesApi(connections, "team", ApiOptions(timeout=5, errors=errors))
        reflector = Reflector(api, Scope(PODS, "team", "a=b"), stored, ReflectorOptions(resync))
        running = asyncio.create_task(reflector.run())
        try:
            async with asyncio.timeout(20):
                await stored.reached.wait()
        finally:
            running.cancel()
            await asyncio.wait([running])
    return stored, [path for _, path, _ in server.asked]


async def test_pages_then_events(errors: ErrorTranslation) -> None:
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
        errors,
        until=8,
    )
    assert stored.items == {"a": 7, "c": 6}
    assert "labelSelector=a%3Db" in asked[0]
    assert "continue=more" in asked[1]
    assert "resourceVersion=5" in asked[2]
    assert "watch=1" in asked[2]


async def test_a_broken_watch_resumes(errors: ErrorTranslation) -> None:
    """Check the resume point, which a bookmark advances although no object changed."""
    stored, asked = await _followed(
        [
            _page(5, _item("a", 1)),
            streams(_event("BOOKMARK", _item("", 90))),
            breaks,
            refuses(500, "InternalError"),
            streams(_event("ADDED", _item("b", 91)), stays=True),
        ],
        errors,
        until=91,
    )
    assert stored.items == {"a": 1, "b": 91}
    assert ["resourceVersion=90" in path for path in asked] == [False, False, True, True, True]


async def test_an_expired_watch_causes_a_list(errors: ErrorTranslation) -> None:
    """Check status 410 as a response and as an event."""
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
        errors,
        until=30,
    )
    assert stored.items == {"d": 25}
    assert sum("limit=" in path for path in asked) == 3


async def test_an_incomplete_list_removes_nothing(errors: ErrorTranslation) -> None:
    stored, _ = await _followed(
        [
            _page(5, _item("a", 1), follows="more"),
            refuses(410, "Expired"),
            refuses(429, "TooManyRequests", **{"Retry-After": "1"}),
            _page(9, _item("b", 8)),
            _OPEN,
        ],
        errors,
        until=9,
    )
    assert stored.items == {"b": 8}


async def test_periodic_resync(errors: ErrorTranslation) -> None:
    """Check that a resync finds objects that a watch has missed, and that a failed list does not stop the
    watch."""
    lists = [_page(5, _item("a", 1)), refuses(500, "InternalError"), _page(8, _item("b", 7))]
    watches = [streams(_event("BOOKMARK", _item("", 6))), streams(_event("ADDED", _item("b", 7)))]

    async def answer(request: web.Request) -> web.StreamResponse:
        # The number of watches between two lists is random: lists and watches have separate answers.
        return await next_of(watches if "watch" in request.query else lists)(request)

    stored, asked = await _followed([answer], errors, until=8, resync=0.05)
    assert stored.items == {"b": 7}
    listed = [at for at, path in enumerate(asked) if "limit=" in path]
    assert len(listed) >= 3
    assert listed[2] > listed[1] + 1


async def test_last_error_is_set_until_changes_are_received(errors: ErrorTranslation) -> None:
    lists: list[ApiResource] = []
    answers = [refuses(500, "InternalError"), _page(5, _item("a", 1)), breaks, _OPEN]
    last_errors: list[str] = []
    store, asked_four_times = RecordingStore(until=5), asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        last_errors.append(reflector.last_error)
        if len(last_errors) == 4:
            asked_four_times.set()
        return await next_of(answers)(request)

    server = ScriptedServer([answer])
    async with server as connections:
        api = KubernetesApi(connections, "team", ApiOptions(timeout=5, errors=errors))
        options = ReflectorOptions(resync_seconds=600, page_size=7, on_list=lists.append)
        reflector = Reflector(api, Scope(PODS), store, options)
        running = asyncio.create_task(reflector.run())
        async with asyncio.timeout(20):
            await asked_four_times.wait()
        running.cancel()
        await asyncio.wait([running])
    assert reflector.synced.is_set()
    assert [bool(error) for error in last_errors] == [False, True, False, True]
    assert "InternalError by the test" in last_errors[1]
    # The failed list is not reported.
    assert lists == [PODS]
    assert "limit=7" in server.asked[0][1]


async def test_a_server_that_ends_each_watch_at_once_is_asked_ever_more_rarely() -> None:
    server = ScriptedServer([_page(5), streams()])
    async with server as connections:
        api = KubernetesApi(connections, "team", ApiOptions(timeout=5))
        reflector = Reflector(api, Scope(PODS), RecordingStore(until=5), ReflectorOptions(600))
        running = asyncio.create_task(reflector.run())
        await asyncio.sleep(1.5)
        running.cancel()
        await asyncio.wait([running])
    # Delays of 0.1, 0.2, 0.4, 0.8 s, each shortened by at most half.
    assert 3 <= len(server.asked) - 1 <= 6


async def test_events_in_one_burst_leave_time_for_other_tasks() -> None:
    burst = [_event("ADDED", _item(str(number), 10 + number)) for number in range(200)]
    store = RecordingStore(until=209)
    seen: list[int] = []

    async def observe() -> None:
        while not store.reached.is_set():
            seen.append(len(store.items))
            await asyncio.sleep(0)

    async with ScriptedServer([_page(5), streams(*burst, stays=True)]) as connections:
        api = KubernetesApi(connections, "team", ApiOptions(timeout=5))
        running = asyncio.create_task(Reflector(api, Scope(PODS), store, ReflectorOptions(600)).run())
        async with asyncio.timeout(20):
            await observe()
        running.cancel()
        await asyncio.wait([running])
    assert len(set(seen)) > 100


def _deep(uid: str, version: int) -> str:
    return f'{{"metadata":{{"uid":"{uid}","resourceVersion":"{version}"}},"spec":{nested(3_000)}}}'


async def test_an_unreadable_object_ends_neither_list_nor_watch(errors: ErrorTranslation) -> None:
    items = f"[{_deep('deep', 1)},{json.dumps(_item('good', 2))}]"
    page = f'{{"metadata":{{"resourceVersion":"4"}},"items":{items}}}'
    changed = f'{{"type":"MODIFIED","object":{_deep("deep", 5)}}}'
    watch = streams(changed, _event("ADDED", _item("late", 6)), stays=True)
    stored, asked = await _followed([sends(page), watch], errors, 6)
    assert stored.items == {"deep": 5, "good": 2, "late": 6}
    assert len(asked) == 2


class _RefusingStore(RecordingStore):
    def put(self, item: Json) -> None:
        if item["metadata"]["uid"] == "bad":
            raise RecursionError("by the test")
        super().put(item)


async def test_an_object_that_the_store_cannot_take_ends_neither_list_nor_watch() -> None:
    stored, unreadable = _RefusingStore(6), []
    watch = streams(_event("MODIFIED", _item("bad", 5)), _event("ADDED", _item("late", 6)), stays=True)
    async with ScriptedServer([_page(4, _item("bad", 1), _item("good", 2)), watch]) as connections:
        options = ReflectorOptions(600, on_unreadable=lambda resource: unreadable.append(resource.plural))
        reflector = Reflector(KubernetesApi(connections, "team"), Scope(PODS), stored, options)
        running = asyncio.create_task(reflector.run())
        async with asyncio.timeout(20):
            await stored.reached.wait()
        running.cancel()
        await asyncio.wait([running])
    assert stored.items == {"good": 2, "late": 6}
    assert unreadable == ["pods", "pods"]


async def test_a_page_that_is_too_long_is_asked_for_in_smaller_ones(errors: ErrorTranslation) -> None:
    long = "x" * (MAX_PAGE_BYTES // 2)
    answers = [
        _page(4, _item("first", 1), {**_item("second", 2), "spec": [long, long]}),
        _page(4, _item("first", 1), follows="next"),
        _page(4, _item("second", 2)),
        _OPEN,
    ]
    stored, asked = await _followed(answers, errors, 4)
    assert stored.items == {"first": 1, "second": 2}
    assert [parse_qs(urlsplit(path).query).get("limit") for path in asked[:3]] == [["100"], ["50"], ["50"]]
