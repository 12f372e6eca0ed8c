"""Calls of the API: every outcome, against a real HTTP server."""

import pytest

from integration.operator.api_server import Answer, ScriptedServer, breaks, hangs, refuses, says
from kubealign.kube.resources import PODS
from kubealign_operator.controller.kube.api import METADATA_ONLY, Api
from kubealign_operator.controller.kube.errors import ApiStatusError, ApiUnavailable, NotLeader
from kubealign_operator.controller.metrics import OperatorMetrics

_PATH = PODS.object_path("team", "one")


async def test_a_response_is_returned_verbatim() -> None:
    server = ScriptedServer([says({"kind": "Pod"})])
    async with server as client:
        api = Api(client, OperatorMetrics(), 5)
        assert await api.get(PODS, _PATH, METADATA_ONLY) == {"kind": "Pod"}
        assert await api.create(PODS, PODS.collection_path("team"), {"a": 1}, "kubealign") == {"kind": "Pod"}
    assert server.asked == [
        ("GET", "/api/v1/namespaces/team/pods/one", ""),
        ("POST", "/api/v1/namespaces/team/pods?fieldManager=kubealign", '{"a": 1}'),
    ]


async def test_an_error_keeps_the_servers_details() -> None:
    async with ScriptedServer([refuses(429, "TooManyRequests", **{"Retry-After": "7"})]) as client:
        with pytest.raises(ApiStatusError) as raised:
            await Api(client, OperatorMetrics(), 5).get(PODS, _PATH)
    error = raised.value
    assert (error.status, error.reason, error.retry_after) == (429, "TooManyRequests", 7.0)
    assert error.message == "TooManyRequests by the test"
    assert error.is_transient


async def test_an_html_error_of_a_proxy_is_a_status_error() -> None:
    from aiohttp import web

    async def page(request: web.Request) -> web.StreamResponse:
        return web.Response(status=502, text="<html>bad gateway</html>", content_type="text/html")

    async with ScriptedServer([page]) as client:
        with pytest.raises(ApiStatusError, match="502 Bad Gateway: <html>"):
            await Api(client, OperatorMetrics(), 5).get(PODS, _PATH)


@pytest.mark.parametrize("answer", [hangs, breaks, says([])], ids=["slow", "broken", "no object"])  # type: ignore[arg-type]
async def test_incomplete_or_late_answers_are_unavailable(answer: Answer) -> None:
    metrics = OperatorMetrics()
    async with ScriptedServer([answer]) as client:
        with pytest.raises(ApiUnavailable):
            await Api(client, metrics, 2.0).get(PODS, _PATH)
    assert 'code="none",resource="pods",verb="get"} 1.0' in metrics.render().decode()


async def test_a_refused_connection_is_unavailable() -> None:
    server = ScriptedServer([says({})])
    async with server as client:
        pass
    async with ScriptedServer([says({})]) as other:
        other.configuration.host = client.configuration.host
        with pytest.raises(ApiUnavailable):
            await Api(other, OperatorMetrics(), 5).get(PODS, _PATH)


async def test_the_guard_blocks_writes_only() -> None:
    def guard() -> None:
        raise NotLeader("the lease is old")

    server = ScriptedServer([says({"kind": "Pod"})])
    async with server as client:
        api = Api(client, OperatorMetrics(), 5, guard)
        await api.get(PODS, _PATH)
        for write in (
            api.create(PODS, PODS.collection_path("team"), {}, "kubealign"),
            api.merge_patch(PODS, _PATH, {}, "kubealign"),
            api.delete(PODS, _PATH, {}),
        ):
            with pytest.raises(NotLeader):
                await write
    assert [method for method, _, _ in server.asked] == ["GET"]
