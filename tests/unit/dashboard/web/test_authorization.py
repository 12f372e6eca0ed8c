"""Authentication and authorization of every route."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts

from kubealign.client.errors import Unavailable
from kubealign_dashboard.app import create_app
from kubealign_dashboard.cluster.access import ClusterAccess
from kubealign_dashboard.local.access import LocalAccess
from support.dashboard import JOBS, LETTERS, browsing, site_with_jobs
from support.ruled_access import Person, RuledAccess, bearer

#: Public paths: none of them reveals anything about a job.
OPEN = {"/", "/jobs", "/jobs/{place:path}", "/favicon.ico", "/static", "/static/js/algorithms.js"}
OPEN |= {"/static/plotly.min.js"}
OPEN |= {"/healthz", "/readyz", "/metrics"}
READING = {"get", "list", "watch"}


@pytest.fixture
async def access(tmp_path: Path) -> RuledAccess:
    return RuledAccess(
        await site_with_jobs(tmp_path),
        {
            "jane": Person("jane"),
            "old": Person("old", expires=time.time() - 1),
            "bob": Person("bob", frozenset({"elsewhere"})),
            "eve": Person("eve", frozenset({"default"}), frozenset(READING)),
        },
    )


def routes(app: FastAPI) -> Iterator[tuple[str, str]]:
    """Return method and path pattern of every route of the application."""
    for route in iter_route_contexts(app.routes):
        for method in sorted(route.methods or {"GET"}):
            yield method, str(route.path)


def guarded(app: FastAPI) -> list[tuple[str, str]]:
    guarded_routes = [(method, path) for method, path in routes(app) if path not in OPEN]
    assert len(guarded_routes) > 20
    return guarded_routes


def filled(pattern: str, namespace: str = "default") -> str:
    return pattern.replace("{namespace}", namespace).replace("{name}", LETTERS.name)


async def test_every_route_requires_a_valid_token(access: RuledAccess) -> None:
    app = create_app(access)
    async with browsing(app) as client:
        for method, pattern in guarded(app):
            for token in ("", "wrong", "old"):
                answer = await client.request(
                    method, filled(pattern), headers=bearer(token) if token else {}, content=b"{not json"
                )
                assert answer.status_code == 401, (method, pattern, token)
                assert answer.headers["www-authenticate"].startswith("Bearer")
                assert answer.headers["content-type"] == "application/problem+json"
    assert not access.asked, "what a stranger may do is not even asked"


async def test_another_namespace_is_forbidden_on_every_route(access: RuledAccess) -> None:
    app = create_app(access)
    before = (await access.reader.get(LETTERS)).resource
    async with browsing(app, bearer("bob")) as client:
        inside = [(method, path) for method, path in guarded(app) if "{namespace}" in path]
        assert len(inside) > 14
        for method, pattern in inside:
            answer = await client.request(method, filled(pattern), content=b"{not json")
            assert answer.status_code == 403, (method, pattern)
            assert "bob may not" in answer.json()["detail"]
        stream = await client.get("/api/v1/stream", params={"namespace": "default"})
        assert stream.status_code == 403
    assert (await access.reader.get(LETTERS)).resource == before


async def test_a_viewer_cannot_change_anything(access: RuledAccess) -> None:
    app = create_app(access)
    before = (await access.reader.get(LETTERS)).resource
    async with browsing(app, bearer("eve")) as client:
        for method, pattern in guarded(app):
            if method == "GET" or pattern.endswith("/session"):
                continue
            answer = await client.request(method, filled(pattern), json={})
            assert answer.status_code == 403, (method, pattern)
        assert (await client.get(f"{JOBS}/letters")).status_code == 200
    assert (await access.reader.get(LETTERS)).resource == before


async def test_read_only_applies_to_everybody(access: RuledAccess) -> None:
    access.read_only = True
    app = create_app(access)
    async with browsing(app, bearer("jane")) as client:
        assert (await client.get("/api/v1/session")).json()["readOnly"] is True
        for method, pattern in guarded(app):
            if method != "GET" and not pattern.endswith("/session"):
                answer = await client.request(method, filled(pattern), json={})
                assert answer.status_code == 403, (method, pattern)
                assert "read-only" in answer.json()["detail"]
        assert (await client.get(f"{JOBS}/letters")).status_code == 200


async def test_public_paths_need_no_token(access: RuledAccess) -> None:
    async with browsing(create_app(access)) as client:
        for path in ("/healthz", "/readyz", "/metrics", "/static/plotly.min.js"):
            assert (await client.get(path)).status_code == 200, path
        for path in (
            "/healthz/",
            "//api/v1/session",
            "/static/../api/v1/session",
            "/API/v1/session",
            "/metricsx",
        ):
            assert (await client.get(path)).status_code in (401, 404), path


async def test_a_list_of_all_namespaces_is_filtered_by_rights(access: RuledAccess) -> None:
    async with browsing(create_app(access)) as client:

        async def seen(token: str) -> set[str]:
            answer = await client.get("/api/v1/alignmentjobs", headers=bearer(token))
            return {job["metadata"]["name"] for job in answer.json()["items"]}

        assert await seen("jane") == {"sums", "letters", "secret"}
        assert await seen("bob") == {"secret"}
        assert await seen("eve") == {"sums", "letters"}


async def test_three_ways_to_send_the_token(access: RuledAccess) -> None:
    async with browsing(create_app(access)) as client:
        for headers in (
            {"Authorization": "Bearer jane"},
            {"authorization": "bearer  jane"},
            {"X-Kubealign-Token": "jane"},
            {"Cookie": "kubealign-token=jane"},
            {"Cookie": "other=1; kubealign-token-8000=jane; kubealign-token=bob"},
            {"Authorization": "Basic eDp5", "X-Kubealign-Token": "jane"},
        ):
            assert (await client.get("/api/v1/session", headers=headers)).json()["user"] == "jane", headers
        for headers in (
            {"Cookie": "kubealign-token"},
            {"Authorization": "Bearer"},
            {"Authorization": "jane"},
        ):
            assert (await client.get("/api/v1/session", headers=headers)).status_code == 401, headers


async def test_cross_site_requests_cannot_use_the_cookie(access: RuledAccess) -> None:
    async with browsing(create_app(access), {"Cookie": "kubealign-token=jane"}) as client:
        answer = await client.put(f"{JOBS}/letters/suspend", json={"suspend": True})
        assert answer.status_code == 403
        assert "X-Requested-With" in answer.json()["detail"]
        ours = {"X-Requested-With": "kubealign"}
        answer = await client.put(f"{JOBS}/letters/suspend", json={"suspend": True}, headers=ours)
        assert answer.status_code == 200


async def test_a_token_in_the_url_becomes_a_cookie(access: RuledAccess) -> None:
    async with browsing(create_app(access)) as client:
        answer = await client.get("/jobs/default/sums?token=jane&step=3")
        assert answer.status_code == 303
        assert answer.headers["location"] == "/jobs/default/sums?step=3"
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith("kubealign-token-8000=jane")
        assert "HttpOnly" in cookie and "SameSite=strict" in cookie
        assert "Path=/api/v1;" in cookie, "no page at another port of this host gets it"
        assert (await client.get("/api/v1/session")).json()["user"] == "jane"
        wrong = await client.get("/?token=wrong")
        assert wrong.status_code == 303 and "set-cookie" not in wrong.headers
        away = await client.get("//evil.example/?token=jane")
        assert not away.headers.get("location", "").startswith("//")


async def test_a_cluster_accepts_no_token_in_the_url(access: RuledAccess) -> None:
    """The token would be in the log of an ingress, and a link could sign a user in as somebody else."""
    access.accepts_token_in_url = False
    async with browsing(create_app(access)) as client:
        answer = await client.get("/jobs/default/sums?token=jane&step=3")
        assert (answer.status_code, answer.headers["location"]) == (303, "/jobs/default/sums?step=3")
        assert "set-cookie" not in answer.headers
        assert (await client.get("/api/v1/session")).status_code == 401
    assert not ClusterAccess.accepts_token_in_url
    assert LocalAccess.accepts_token_in_url


async def test_sign_in_and_out_through_the_api(access: RuledAccess) -> None:
    async with browsing(create_app(access), base="https://dash.example") as client:
        answer = await client.post("/api/v1/session", headers=bearer("jane"))
        assert answer.status_code == 204
        assert "Secure" in answer.headers["set-cookie"]
        assert (await client.get("/api/v1/session")).json()["user"] == "jane"
        await client.delete("/api/v1/session", headers={"X-Requested-With": "kubealign"})
        assert (await client.get("/api/v1/session")).status_code == 401


async def test_unverifiable_tokens_answer_unavailable(access: RuledAccess) -> None:
    access.away = Unavailable("the API server did not answer within 5 s")
    async with browsing(create_app(access), bearer("jane")) as client:
        answer = await client.get("/api/v1/session")
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) > 0
