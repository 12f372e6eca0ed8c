"""The shared API client: retries, streams, limits and hooks, against a real HTTP server."""

import json
from contextlib import aclosing

import pytest
from aiohttp import web

from integration.kube.api_server import Answer, ScriptedServer, breaks, refuses, says, streams
from kubealign.errors import Forbidden, Unavailable
from kubealign.kube.api import METADATA_ONLY, ApiOptions, KubernetesApi
from kubealign.kube.connections import Connections
from kubealign.kube.errors import STATUS_ERRORS, ApiCall, ApiStatusError, ObjectNotFound, WatchExpired
from kubealign.kube.resources import PODS

_POD = PODS.object_path("team", "one")
_EVENT = {"type": "ADDED", "object": {"metadata": {"name": "one"}}}


def _sends(*chunks: bytes, media: str = "application/json") -> Answer:
    """Return an answer with these bytes in its body."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": media})
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
        return response

    return answer


async def _watched(api: KubernetesApi) -> list[str]:
    async with aclosing(api.watch(PODS.collection_path(), {"resourceVersion": 5})) as events:
        return [event["type"] async for event in events]


async def test_a_postponed_call_is_repeated() -> None:
    server = ScriptedServer([refuses(429, "TooManyRequests", **{"Retry-After": "0"}), says({"a": 1})])
    async with server as connections:
        assert await KubernetesApi(connections, "team").get(_POD) == {"a": 1}
    assert len(server.asked) == 2


async def test_a_call_is_postponed_three_times_at_most() -> None:
    server = ScriptedServer([refuses(429, "TooManyRequests", **{"Retry-After": "0"})])
    async with server as connections:
        with pytest.raises(Unavailable, match="try again later"):
            await KubernetesApi(connections, "team").get(_POD)
    assert len(server.asked) == 3


async def test_errors_are_translated_for_users_by_default() -> None:
    async with ScriptedServer([refuses(404, "NotFound"), refuses(403, "Forbidden"), breaks]) as connections:
        api = KubernetesApi(connections, "team")
        with pytest.raises(ObjectNotFound):
            await api.get(_POD)
        with pytest.raises(Forbidden, match="you may not delete pods one in namespace team"):
            await api.delete(_POD)
        with pytest.raises(Unavailable, match=r"did not answer \(get pods one in namespace team\)"):
            await api.get(_POD)


async def test_hooks_see_every_request() -> None:
    requests: list[tuple[str, str, str]] = []
    writes: list[None] = []

    def record(call: ApiCall, status: str, seconds: float) -> None:
        assert seconds >= 0.0
        requests.append((call.verb, call.resource, status))

    answers = [says({}), says({}, 201), refuses(409, "Conflict"), breaks, streams(_EVENT)]
    options = ApiOptions(errors=STATUS_ERRORS, guard=lambda: writes.append(None), on_request=record)
    async with ScriptedServer(answers) as connections:
        # A client with another token has the same options.
        api = KubernetesApi(connections, "team", options).with_token("t")
        await api.get(_POD)
        await api.create(f"{_POD}/binding", {})
        with pytest.raises(ApiStatusError):
            await api.merge_patch(_POD, {})
        with pytest.raises(Unavailable):
            await api.delete(_POD)
        assert await _watched(api) == ["ADDED"]
    assert requests == [
        ("get", "pods", "200"),
        ("create", "pods", "201"),
        ("patch", "pods", "409"),
        ("delete", "pods", "none"),
        ("watch", "pods", "200"),
    ]
    assert len(writes) == 3


async def test_headers_name_the_client_and_the_form_of_the_response() -> None:
    headers: list[tuple[str, str]] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        headers.append((request.headers["User-Agent"], request.headers["Accept"]))
        return web.json_response({})

    async with ScriptedServer([answer]) as connections:
        api = KubernetesApi(Connections(connections.configuration, user_agent="mine"), "team")
        async with api:
            await api.get(_POD)
            await api.get(_POD, accept=METADATA_ONLY)
    assert headers == [("mine", "application/json, */*"), ("mine", METADATA_ONLY)]


async def test_a_watch_ignores_empty_lines_and_the_boundaries_of_chunks() -> None:
    text = json.dumps(_EVENT).encode()
    chunks = (text[:7], text[7:] + b"\n\n" + text, b"\r\n", text)
    async with ScriptedServer([_sends(*chunks)]) as connections:
        assert await _watched(KubernetesApi(connections, "team")) == ["ADDED"] * 3


async def test_a_watch_ends_with_the_error_of_its_event() -> None:
    gone = {"type": "ERROR", "object": {"code": 410, "reason": "Expired", "message": "too old"}}
    async with ScriptedServer([streams(gone)]) as connections:
        with pytest.raises(WatchExpired, match="too old"):
            await _watched(KubernetesApi(connections, "team"))
        with pytest.raises(ApiStatusError, match=r"^watch /api/v1/pods: 410 Expired: too old$"):
            await _watched(KubernetesApi(connections, "team", ApiOptions(errors=STATUS_ERRORS)))


@pytest.mark.parametrize("answer", [breaks, _sends(b"<html>"), _sends(b" " * (6 << 20))])
async def test_a_broken_malformed_or_endless_event_is_unavailable(answer: Answer) -> None:
    async with ScriptedServer([answer]) as connections:
        with pytest.raises(Unavailable):
            await _watched(KubernetesApi(connections, "team"))


async def test_an_event_of_three_mebibytes_is_received() -> None:
    event = {"type": "MODIFIED", "object": {"data": "x" * (3 << 20)}}
    async with ScriptedServer([streams(event)]) as connections:
        assert await _watched(KubernetesApi(connections, "team")) == ["MODIFIED"]


async def test_a_log_line_without_end_is_split() -> None:
    answer = _sends(b"a\n" + b"b" * (3 << 20), b"\nc", media="text/plain")
    async with ScriptedServer([answer]) as connections:
        lines = KubernetesApi(connections, "team").stream_lines(f"{_POD}/log")
        async with aclosing(lines):
            received = [line async for line in lines]
    assert received[0] == "a" and received[-1] == "c"
    assert "".join(received[1:-1]) == "b" * (3 << 20)
    assert max(map(len, received)) < 2 << 20
