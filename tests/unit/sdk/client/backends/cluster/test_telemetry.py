"""Telemetry over REST, against a test server with the dashboard's API."""

import json
import math
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, cast
from urllib.parse import unquote

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from kubealign.client.backends.cluster.dashboard_discovery import open_telemetry
from kubealign.client.backends.cluster.telemetry import DashboardTelemetry, HttpDashboard, parse_response
from kubealign.client.errors import (
    Conflict,
    Forbidden,
    JobNotFound,
    KubealignError,
    NotPossible,
    Unauthenticated,
    Unavailable,
)
from kubealign.client.records import JobRef
from kubealign.kube.api import KubernetesApi
from kubealign.validation_record import ValidationRecord

REF = JobRef("team", "one")
Answer = Callable[[web.Request], web.Response]


@pytest.fixture
async def asked() -> AsyncIterator[tuple[DashboardTelemetry, list[web.Request], dict[str, Any]]]:
    """Telemetry source, received requests, responses."""
    requests: list[web.Request] = []
    answer: dict[str, Any] = {"items": []}

    async def handle(request: web.Request) -> web.Response:
        requests.append(request)
        return web.json_response(answer)

    application = web.Application()
    application.add_routes([web.get("/base/api/v1/{rest:.*}", handle)])
    server = TestServer(application)
    await server.start_server()
    async with DashboardTelemetry(str(server.make_url("/base/")), "secret") as source:
        yield source, requests, answer
    await server.close()


Asked = tuple[DashboardTelemetry, list[web.Request], dict[str, Any]]


async def test_responses_of_a_validation_are_read_page_by_page(asked: Asked) -> None:
    dashboard, requests, answer = asked
    item = {"row": 4, "set": "hard", "prompt": "p", "response": "r", "scores": {"right": 1, "style": None}}
    answer |= {
        "items": [item | {"shortened": True, "truncated": True, "explanations": {"a": "b"}}],
        "total": 2,
    }
    records = await dashboard.validation_samples(REF, 7)
    record = ValidationRecord(4, "p", "r", {"right": 1.0, "style": None}, {"a": "b"}, True, "hard", True)
    assert records == [record, record]
    assert [request.query["offset"] for request in requests] == ["0", "1"]
    assert {request.query["step"] for request in requests} == {"7"}


async def test_steps_have_their_values(asked: Asked) -> None:
    dashboard, requests, answer = asked
    answer["items"] = [{"entry": "3-0", "step": 2, "fence": 1, "values": {"reward": 0.5, "kl": None}}]
    [step] = await dashboard.metrics(REF, "2-0", 10_000)
    assert (step.entry, step.step, step.fence, step.values["reward"]) == ("3-0", 2, 1, 0.5)
    assert math.isnan(step.values["kl"])
    [request] = requests
    assert request.path == "/base/api/v1/namespaces/team/alignmentjobs/one/metrics"
    assert request.query == {"after": "2-0", "limit": "5000"}
    assert request.headers["Authorization"] == "Bearer secret"


async def test_samples_have_their_tokens(asked: Asked) -> None:
    dashboard, requests, answer = asked
    answer["items"] = [
        {
            "entry": "1-0",
            "step": 1,
            "prompt": "p",
            "response": "r s",
            "reward": None,
            "rewards": {"a": 1, "b": None},
            "explanations": {"a": "read r"},
            "weightVersion": 4,
            "truncated": True,
            "groupId": "g",
            "purpose": "training",
            "tokens": ["r", " s"],
            "tokenValues": {"kl": [0.1, None]},
        }
    ]
    [sample] = await dashboard.samples(REF, step=1, newest=True)
    assert (sample.reward, sample.rewards, sample.weight_version) == (None, {"a": 1.0, "b": None}, 4)
    assert sample.explanations == {"a": "read r"}
    assert sample.tokens == ("r", " s") and sample.token_values == {"kl": (0.1, None)}
    assert requests[0].query == {"after": "0-0", "limit": "100", "step": "1", "newest": "true"}


async def test_heartbeats_of_requested_processes_only(asked: Asked) -> None:
    dashboard, requests, answer = asked
    assert await dashboard.heartbeats(REF, []) == {} and not requests
    answer["items"] = [
        {"name": "driver", "says": {"time": 1}, "silentSeconds": 1.0},
        {"name": "trainer-0", "says": {}},
        {"name": "rollout-0", "says": {"time": 2}},
    ]
    assert await dashboard.heartbeats(REF, ["driver", "trainer-0"]) == {"driver": {"time": 1}}


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, Unauthenticated),
        (403, Forbidden),
        (404, JobNotFound),
        (409, Conflict),
        (429, Unavailable),
        (503, Unavailable),
        (307, NotPossible),
        (418, NotPossible),
    ],
)
def test_problem_document_becomes_an_exception(status: int, kind: type[KubealignError]) -> None:
    body = json.dumps({"title": "No", "detail": "there is no job one", "status": status}).encode()
    with pytest.raises(kind, match="the dashboard: there is no job one"):
        parse_response(status, body, "the dashboard")


async def test_response_of_another_server_is_an_error() -> None:
    with pytest.raises(Unavailable, match="is it a kubealign dashboard"):
        parse_response(200, b"<html>", "http://x")
    with pytest.raises(NotPossible, match="http://HOST"):
        HttpDashboard("dashboard:8080", None)
    async with DashboardTelemetry("http://127.0.0.1:1", None) as dashboard:
        with pytest.raises(Unavailable, match="does not respond"):
            await dashboard.metrics(REF)


class Proxy:
    """Service proxy of the API server, with a response per port name."""

    def __init__(self, **answers: tuple[int, Any]) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.headers: list[Mapping[str, str]] = []

    async def bearer_token(self) -> str:
        return "mine"

    async def get_raw(self, path: str, query: object, headers: Mapping[str, str]) -> tuple[int, bytes]:
        self.asked.append(path)
        self.headers.append(headers)
        port = unquote(path.split("/services/")[1].split("/")[0])
        scheme = port.split(":")[-1]
        message = f'no service port "{scheme}" found for service "kubealign-dashboard"'
        status, body = self.answers.get(scheme, (503, {"kind": "Status", "message": message}))
        return status, json.dumps(body).encode()


def through(proxy: Proxy) -> DashboardTelemetry:
    return open_telemetry(cast(KubernetesApi, proxy))


@pytest.fixture
def _nothing_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBEALIGN_DASHBOARD", raising=False)
    monkeypatch.delenv("KUBEALIGN_TOKEN", raising=False)


@pytest.mark.usefixtures("_nothing_named")
async def test_dashboard_service_is_found_with_and_without_tls() -> None:
    proxy = Proxy(http=(200, {"items": []}))
    steps = through(proxy)
    assert await steps.metrics(REF) == [] and await steps.samples(REF) == []
    base = "/api/v1/namespaces/kubealign-system/services"
    rest = "/proxy/api/v1/namespaces/team/alignmentjobs/one"
    assert [unquote(path) for path in proxy.asked] == [
        f"{base}/https:kubealign-dashboard:https{rest}/metrics",
        f"{base}/kubealign-dashboard:http{rest}/metrics",
        f"{base}/kubealign-dashboard:http{rest}/samples",
    ]
    assert {headers["X-Kubealign-Token"] for headers in proxy.headers} == {"mine"}


@pytest.mark.usefixtures("_nothing_named")
@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        ((404, {"kind": "Status", "message": "not found"}), Unavailable, "dashboard.enabled=true"),
        ((403, {"kind": "Status", "message": "cannot get"}), Forbidden, "services/proxy"),
        ((503, {"kind": "Status", "message": "no endpoints available"}), Unavailable, "no endpoints"),
        ((404, {"title": "Not Found", "detail": "there is no job one"}), JobNotFound, "no job one"),
        ((401, {"detail": "the token has expired"}), Unauthenticated, "has expired"),
    ],
)
async def test_error_names_the_refusing_server(
    answer: tuple[int, Any], kind: type[KubealignError], words: str
) -> None:
    proxy = Proxy(https=answer)
    with pytest.raises(kind, match=words):
        await through(proxy).metrics(REF)
    assert len(proxy.asked) == 1
