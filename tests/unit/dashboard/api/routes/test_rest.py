"""The REST API over a backend: responses and errors."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from kubealign.client.errors import Conflict, MetricsUnreadable, Unavailable
from kubealign.client.records import JobEvent, ProcessRecord, ProcessState
from kubealign.read_model import SampleRecord
from kubealign_dashboard.app import create_app
from support.dashboard import JOBS, LETTERS, SUMS, browsing, site_with_jobs
from support.memory_backend import MemoryBackend
from support.ruled_access import Person, RuledAccess, bearer
from support.tiny_jobs import sft_job

MERGE = {"Content-Type": "application/merge-patch+json"}
MARKUP = "<script>alert(1)</script>"


@pytest.fixture
async def site(tmp_path: Path) -> MemoryBackend:
    return await site_with_jobs(tmp_path)


@pytest.fixture
async def client(site: MemoryBackend) -> AsyncIterator[httpx.AsyncClient]:
    async with browsing(create_app(RuledAccess(site, {"jane": Person("jane")})), bearer("jane")) as client:
        yield client


def problem_of(answer: httpx.Response, status: int) -> dict[str, Any]:
    """Return the problem of a response."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = answer.json()
    assert problem["status"] == status
    assert problem["type"].startswith("urn:kubealign:problem:")
    assert problem["title"] and problem["detail"]
    assert problem["instance"] == answer.request.url.path
    return problem


async def test_a_job_from_creation_to_deletion(client: httpx.AsyncClient, tmp_path: Path) -> None:
    document = sft_job(tmp_path, "more")
    tried = await client.post(JOBS, params={"dryRun": "All"}, json=document)
    assert tried.status_code == 201
    problem_of(await client.get(f"{JOBS}/more"), 404)
    created = await client.post(JOBS, json=document)
    assert created.status_code == 201
    assert created.headers["location"] == f"{JOBS}/more"
    assert created.json()["metadata"]["namespace"] == "default"
    assert problem_of(await client.post(JOBS, json=document), 409)["type"].endswith("job-exists")
    patch = {"metadata": {"labels": {"team": "maths"}}}
    changed = await client.patch(f"{JOBS}/more", json=patch, headers=MERGE)
    assert changed.json()["metadata"]["labels"] == {"team": "maths"}
    assert (await client.get(JOBS, params={"labelSelector": "team=maths"})).json()["metadata"]["total"] == 1
    suspended = await client.put(f"{JOBS}/more/suspend", json={"suspend": True})
    assert suspended.json()["status"]["phase"] == "Suspended"
    assert (await client.delete(f"{JOBS}/more")).json() == {}
    problem_of(await client.get(f"{JOBS}/more"), 404)


async def test_only_a_failed_job_is_retried(
    client: httpx.AsyncClient, site: MemoryBackend, tmp_path: Path
) -> None:
    record = await site.create(sft_job(tmp_path, "again"))
    problem_of(await client.post(f"{JOBS}/again/retry"), 409)
    site.status(record.ref, phase="Failed")
    retried = await client.post(f"{JOBS}/again/retry")
    assert (retried.status_code, retried.json()["status"]["phase"]) == (200, "Starting")


async def test_pages_contain_each_job_once(
    client: httpx.AsyncClient, site: MemoryBackend, tmp_path: Path
) -> None:
    for number in range(23):
        await site.create(sft_job(tmp_path, f"page-{number:02}"))
    query = {"search": "PAGE-", "sort": "name", "limit": "5"}
    names, after, pages = [], "", 0
    while True:
        answer = (await client.get(JOBS, params={**query, "continue": after})).json()
        assert answer["metadata"]["total"] == 23
        names += [job["metadata"]["name"] for job in answer["items"]]
        pages, after = pages + 1, answer["metadata"]["continue"]
        if pages == 1:
            assert answer["metadata"]["remainingItemCount"] == 18
        if not after:
            break
    assert pages == 5
    assert names == sorted({f"page-{number:02}" for number in range(23)})


async def test_scale(client: httpx.AsyncClient) -> None:
    before = (await client.get(f"{JOBS}/letters/scale")).json()
    assert (before["kind"], before["apiVersion"]) == ("Scale", "autoscaling/v1")
    before["spec"]["replicas"] = 3
    after = (await client.put(f"{JOBS}/letters/scale", json=before)).json()
    assert after["spec"]["replicas"] == 3
    assert "has no rollout workers" in problem_of(await client.get(f"{JOBS}/sums/scale"), 409)["detail"]
    problem_of(await client.put(f"{JOBS}/sums/scale", json=before), 409)


async def test_metrics_continue_after_an_entry(client: httpx.AsyncClient, site: MemoryBackend) -> None:
    for step in range(1, 6):
        site.report(LETTERS, step, {"reward/mean": step / 10, "loss": float("nan")})
    first = (await client.get(f"{JOBS}/letters/metrics", params={"limit": 2})).json()
    assert [item["step"] for item in first["items"]] == [1, 2]
    assert first["items"][0]["values"] == {"reward/mean": 0.1, "loss": None}
    rest = (await client.get(f"{JOBS}/letters/metrics", params={"after": first["next"]})).json()
    assert [item["step"] for item in rest["items"]] == [3, 4, 5]
    none = (await client.get(f"{JOBS}/letters/metrics", params={"after": rest["next"]})).json()
    assert none == {"items": [], "next": rest["next"]}


async def test_samples(client: httpx.AsyncClient, site: MemoryBackend) -> None:
    for step in (1, 1, 2):
        values = {"logprobs": (-0.5, None), "kl": (float("inf"), 0.1)}
        site.sample(
            LETTERS,
            SampleRecord(
                "", step, "ab", MARKUP, 0.5, {"letters": 0.5}, tokens=("<", "b"), token_values=values
            ),
        )
    answer = await client.get(f"{JOBS}/letters/samples", params={"step": 1})
    items = answer.json()["items"]
    assert [item["step"] for item in items] == [1, 1]
    assert items[0]["response"] == MARKUP
    assert items[0]["tokenValues"] == {"logprobs": [-0.5, None], "kl": [None, 0.1]}
    newest = (await client.get(f"{JOBS}/letters/samples", params={"newest": True, "limit": 2})).json()
    assert [item["step"] for item in newest["items"]] == [2, 1]
    assert newest["next"] == newest["items"][0]["entry"]


async def test_data_is_never_served_as_html(client: httpx.AsyncClient, site: MemoryBackend) -> None:
    site.sample(LETTERS, SampleRecord("", 1, MARKUP, MARKUP))
    site.log(LETTERS, "driver", MARKUP)
    site.status(LETTERS, message=MARKUP)
    for path in ("", "/samples", "/logs", "/metrics"):
        answer = await client.get(f"{JOBS}/letters{path}")
        assert answer.headers["content-type"].split(";")[0] in ("application/json", "application/x-ndjson")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["cache-control"] == "no-store"
    answer = await client.get(f"{JOBS}/{MARKUP}")
    assert answer.status_code in (404, 422)
    assert answer.headers["content-type"] == "application/problem+json"


async def test_processes_events_and_logs(client: httpx.AsyncClient, site: MemoryBackend) -> None:
    now = datetime.now(UTC)
    site.staff(
        LETTERS,
        ProcessRecord("driver", "driver", ProcessState.READY, started=now),
        ProcessRecord("rollout-0", "rollout", ProcessState.RESTARTING, 2, "was killed", silent_seconds=3.5),
    )
    site.say(LETTERS, "rollout-0", weight_version=7)
    site.happen(LETTERS, JobEvent(now, "Warning", "Restarted", "rollout-0 was killed", 2))
    site.log(LETTERS, "driver", "step 1", "step 2", "step 3")
    site.log(LETTERS, "rollout-0", "took version 7")
    roles = (await client.get(f"{JOBS}/letters/roles")).json()["items"]
    assert roles[1] == {
        "name": "rollout-0",
        "role": "rollout",
        "state": "Restarting",
        "restarts": 2,
        "message": "was killed",
        "started": None,
        "says": {"weight_version": 7},
        "silentSeconds": 3.5,
        "where": "",
    }
    events = (await client.get(f"{JOBS}/letters/events")).json()["items"]
    assert (events[0]["reason"], events[0]["count"]) == ("Restarted", 2)
    logs = await client.get(f"{JOBS}/letters/logs", params={"role": "driver", "tail": 2})
    assert logs.text == '{"process":"driver","text":"step 2"}\n{"process":"driver","text":"step 3"}\n'


async def test_health_findings(client: httpx.AsyncClient, site: MemoryBackend) -> None:
    for step in range(1, 41):
        site.report(LETTERS, step, {"kl/reference": 0.1 * step, "kl/reference_sequence": 10.0 * step})
    answer = await client.get(f"{JOBS}/letters/health")
    assert answer.status_code == 200
    finding = answer.json()["items"][0]
    assert finding["severity"] == "Critical"
    assert finding["title"] == "The KL is running away"
    assert finding["detail"] and finding["remedy"]
    assert (finding["metric"], finding["anchor"]) == ("kl/reference_sequence", "kl-running-away")


@pytest.mark.parametrize(
    ("method", "path", "arguments", "status", "parameter"),
    [
        ("GET", JOBS, {"params": {"limit": "0"}}, 422, "limit"),
        ("GET", JOBS, {"params": {"phase": "Sleeping"}}, 422, "phase.0"),
        ("GET", JOBS, {"params": {"continue": "nowhere"}}, 422, "continue"),
        ("GET", JOBS, {"params": {"labelSelector": "a=b=c"}}, 422, "labelSelector"),
        ("GET", JOBS + "/sums/metrics", {"params": {"after": "x"}}, 422, "after"),
        ("GET", JOBS + "/sums/stream", {"params": {"lastEventId": "x"}}, 422, "lastEventId"),
        ("GET", JOBS + "/Sums", {}, 422, "name"),
        ("POST", JOBS, {"json": []}, 422, "body"),
        ("POST", JOBS, {"content": b"{", "headers": {"Content-Type": "application/json"}}, 422, "body"),
        (
            "POST",
            JOBS,
            {"content": b"[" * 100_000, "headers": {"Content-Type": "application/json"}},
            422,
            "body",
        ),
        ("POST", JOBS, {"content": b"a: b"}, 415, ""),
        ("POST", JOBS, {"json": {"padding": "x" * 1_100_000}}, 413, ""),
        ("PATCH", JOBS + "/sums", {"json": {}}, 415, ""),
        ("PUT", JOBS + "/sums/suspend", {"json": {"suspend": "yes"}}, 422, "suspend"),
        ("PUT", JOBS + "/letters/scale", {"json": {"spec": {"replicas": -1}}}, 422, "spec.replicas"),
        ("POST", "/api/v1/nothing", {}, 404, ""),
    ],
)
async def test_bad_requests_name_the_parameter(
    client: httpx.AsyncClient, method: str, path: str, arguments: dict[str, Any], status: int, parameter: str
) -> None:
    problem = problem_of(await client.request(method, path, **arguments), status)
    if parameter:
        assert parameter in [error["path"] for error in problem["errors"]]


async def test_an_invalid_job_lists_all_errors(client: httpx.AsyncClient, tmp_path: Path) -> None:
    document = sft_job(tmp_path, "bad", maxSteps=0, seed="x")
    problem = problem_of(await client.post(JOBS, json=document), 422)
    assert {error["path"] for error in problem["errors"]} >= {"spec.maxSteps", "spec.seed"}
    document = sft_job(tmp_path, "bad")
    document["metadata"]["namespace"] = "elsewhere"
    assert (
        problem_of(await client.post(JOBS, json=document), 422)["errors"][0]["path"] == "metadata.namespace"
    )


async def test_backend_errors_become_problems(client: httpx.AsyncClient, site: MemoryBackend) -> None:
    site.failing = Unavailable("Redis did not answer")
    answer = await client.get(f"{JOBS}/sums")
    assert problem_of(answer, 503)["detail"] == "Redis did not answer"
    assert answer.headers["retry-after"]
    site.failing = MetricsUnreadable("the key kubealign:default:sums:metrics cannot be read")
    problem = problem_of(await client.get(f"{JOBS}/sums/metrics"), 502)
    assert problem["type"] == "urn:kubealign:problem:metrics-unreadable"
    assert "kubealign:default:sums:metrics" in problem["detail"]
    site.failing = Conflict("it has changed meanwhile")
    problem_of(await client.delete(f"{JOBS}/sums"), 409)
    site.failing = KeyError("secret inside")  # type: ignore[assignment]
    answer = await client.get(f"{JOBS}/sums")
    problem_of(answer, 500)
    assert "secret" not in answer.text


async def test_unsupported_methods_list_the_allowed_ones(client: httpx.AsyncClient) -> None:
    answer = await client.request("PATCH", JOBS, json={})
    problem_of(answer, 405)
    assert answer.headers["allow"] == "GET, POST"


async def test_requests_are_counted_by_route(client: httpx.AsyncClient) -> None:
    await client.get(f"{JOBS}/{SUMS.name}")
    page = (await client.get("/metrics")).text
    route = 'route="/api/v1/namespaces/{namespace}/alignmentjobs/{name}",status="200"'
    assert f'kubealign_dashboard_requests_total{{method="GET",{route}}} 1.0' in page
    assert SUMS.name not in page


async def test_strangers_add_no_metric_series(site: MemoryBackend) -> None:
    async with browsing(create_app(RuledAccess(site, {}))) as client:
        for number in range(20):
            for path in ("/", f"/x{number}", f"/jobs/x{number}", f"/static/x{number}", f"{JOBS}/x{number}"):
                await client.request(f"MADE{number}", path)
                await client.get(path)
        page = (await client.get("/metrics")).text
    lines = [line for line in page.splitlines() if line.startswith("kubealign_dashboard_requests_total{")]
    assert len(lines) < 10, lines
    assert any('method="OTHER"' in line for line in lines)
    assert "MADE" not in page and "x7" not in page
