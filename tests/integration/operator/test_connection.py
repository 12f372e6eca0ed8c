"""The operator's client: every outcome of a call, against a real HTTP server."""

import ssl
from pathlib import Path

import pytest
import yaml
from kubernetes.aio.client import Configuration

from integration.kube.api_server import Answer, ScriptedServer, breaks, hangs, refuses, says
from kubealign.errors import Unavailable
from kubealign.kube.api import METADATA_ONLY
from kubealign.kube.connections import Connections
from kubealign.kube.errors import ApiStatusError
from kubealign.kube.resources import JOBS, PODS
from kubealign_operator.controller.config import OperatorConfig
from kubealign_operator.controller.kube.connection import connect, operator_api
from kubealign_operator.controller.kube.leader_election import NotLeader
from kubealign_operator.controller.metrics import OperatorMetrics

_PATH = PODS.object_path("team", "one")


async def test_a_response_is_returned_verbatim() -> None:
    server = ScriptedServer([says({"kind": "Pod"})])
    async with server as connections:
        api = operator_api(connections, OperatorMetrics(), 5)
        assert await api.get(_PATH, accept=METADATA_ONLY) == {"kind": "Pod"}
        assert await api.create(PODS.collection_path("team"), {"a": 1}, {"fieldManager": "kubealign"}) == {
            "kind": "Pod"
        }
    assert server.asked == [
        ("GET", "/api/v1/namespaces/team/pods/one", ""),
        ("POST", "/api/v1/namespaces/team/pods?fieldManager=kubealign", '{"a": 1}'),
    ]


async def test_an_error_keeps_the_servers_details() -> None:
    async with ScriptedServer([refuses(429, "TooManyRequests", **{"Retry-After": "7"})]) as connections:
        with pytest.raises(ApiStatusError) as raised:
            await operator_api(connections, OperatorMetrics(), 5).get(_PATH)
    error = raised.value
    assert (error.status, error.reason, error.retry_after) == (429, "TooManyRequests", 7.0)
    assert error.message == "TooManyRequests by the test"
    assert error.is_transient


async def test_an_html_error_of_a_proxy_is_a_status_error() -> None:
    from aiohttp import web

    async def page(request: web.Request) -> web.StreamResponse:
        return web.Response(status=502, text="<html>bad gateway</html>", content_type="text/html")

    async with ScriptedServer([page]) as connections:
        with pytest.raises(ApiStatusError, match="502 Bad Gateway: <html>"):
            await operator_api(connections, OperatorMetrics(), 5).get(_PATH)


@pytest.mark.parametrize("answer", [hangs, breaks, says([])], ids=["slow", "broken", "no object"])  # type: ignore[arg-type]
async def test_incomplete_or_late_answers_are_unavailable(answer: Answer) -> None:
    metrics = OperatorMetrics()
    async with ScriptedServer([answer]) as connections:
        with pytest.raises(Unavailable):
            await operator_api(connections, metrics, 2.0).get(_PATH)
    assert 'code="none",resource="pods",verb="get"} 1.0' in metrics.render().decode()


async def test_a_refused_connection_is_unavailable() -> None:
    server = ScriptedServer([says({})])
    async with server as connections:
        pass
    async with Connections(Configuration(host=connections.server)) as refused:
        with pytest.raises(Unavailable, match=rf"^get {_PATH}: no complete answer: ClientConnectorError: "):
            await operator_api(refused, OperatorMetrics(), 5).get(_PATH)


async def test_the_guard_blocks_writes_only() -> None:
    def guard() -> None:
        raise NotLeader("the lease is old")

    server = ScriptedServer([says({"kind": "Pod"})])
    async with server as connections:
        api = operator_api(connections, OperatorMetrics(), 5, guard)
        await api.get(_PATH)
        for write in (
            api.create(PODS.collection_path("team"), {}),
            api.merge_patch(_PATH, {}),
            api.delete(_PATH, {}),
        ):
            with pytest.raises(NotLeader):
                await write
    assert [method for method, _, _ in server.asked] == ["GET"]


async def test_a_refused_status_patch_is_counted_as_a_call_of_its_resource() -> None:
    metrics = OperatorMetrics()
    async with ScriptedServer([refuses(409, "Conflict")]) as connections:
        with pytest.raises(ApiStatusError) as raised:
            path = f"{JOBS.object_path('team', 'one')}/status"
            await operator_api(connections, metrics, 5).merge_patch(path, {})
    assert raised.value.is_conflict
    assert str(raised.value) == f"patch {path}: 409 Conflict: Conflict by the test"
    assert 'code="409",resource="alignmentjobs",verb="patch"} 1.0' in metrics.render().decode()


async def test_an_unusable_certificate_ends_the_start(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    cluster = {"server": "https://127.0.0.1:1", "certificate-authority": str(tmp_path / "ca.pem")}
    kubeconfig = tmp_path / "config"
    kubeconfig.write_text(
        yaml.safe_dump(
            {
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
                "clusters": [{"name": "c", "cluster": cluster}],
                "users": [{"name": "u", "user": {"token": "t"}}],
            }
        )
    )
    config = OperatorConfig.model_validate(
        {"kubeconfig": str(kubeconfig), "platform": {"image": "none", "redisHost": "none"}}
    )
    with pytest.raises(ssl.SSLError):
        await connect(config)
