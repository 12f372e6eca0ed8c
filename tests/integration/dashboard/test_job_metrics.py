"""Metrics of jobs for a cluster's Prometheus, from a real Redis in which jobs write whatever they like."""

import json
import math
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import httpx
import pytest
import redis.asyncio
from prometheus_client.parser import text_string_to_metric_families

from kubealign.client.errors import Forbidden
from kubealign.client.records import JobRef
from kubealign.local.servers.redis import LocalRedisServer
from kubealign.process_settings import RedisAccess
from kubealign_dashboard.access import Caller
from kubealign_dashboard.app import create_app
from kubealign_dashboard.cluster.cached_job import CachedJob, cached_job
from kubealign_dashboard.cluster.redis_telemetry import JobSummary, RedisTelemetry
from kubealign_dashboard.job_metrics.exporter import JobMetricsExporter
from kubealign_dashboard.job_metrics.families import FAMILIES, MAX_NAMES, STEP_METRICS
from kubealign_services.telemetry.read_model_writer import ReadModelWriter
from support.dashboard import browsing
from support.memory_backend import MemoryBackend
from support.redis_server import running_redis
from support.ruled_access import Person, RuledAccess, bearer

pytestmark = pytest.mark.timeout(120, method="signal")

NOW = 1_800_000_000.0
SCRAPER = Caller("prometheus", "token")
#: A job's series without any telemetry: info, phase, restarts, active seconds.
PLAIN_SERIES = 4
Page = dict[tuple[str, str], dict[str, float]]


@pytest.fixture(scope="module")
async def server(
    tmp_path_factory: pytest.TempPathFactory, unused_tcp_port_factory: Any
) -> AsyncIterator[LocalRedisServer]:
    folder = tmp_path_factory.mktemp("redis")
    server = LocalRedisServer(folder, unused_tcp_port_factory(), "kubealign:", "secret", "admin")
    async with running_redis(server):
        yield server


@pytest.fixture
async def client(server: LocalRedisServer) -> AsyncIterator[redis.asyncio.Redis]:
    """Client of the user that writes, of an empty Redis."""
    admin = redis.asyncio.Redis(port=server.port, username="admin", password="admin")
    await admin.flushall()
    await admin.aclose()
    async with redis.asyncio.Redis(port=server.port, username="job", password="secret") as writer:
        yield writer


class Telemetry(RedisTelemetry):
    """The real reader, which counts the jobs that are read."""

    def __init__(self, access: RedisAccess) -> None:
        super().__init__(access)
        self.reads: list[JobRef] = []

    async def summary(self, ref: JobRef) -> JobSummary:
        self.reads.append(ref)
        return await super().summary(ref)


@pytest.fixture
async def telemetry(server: LocalRedisServer) -> AsyncIterator[Telemetry]:
    reader = Telemetry(server.access)
    yield reader
    await reader.close()


async def allow(caller: Caller) -> None:
    """Authorize everybody."""


def job(
    name: str, phase: str = "Running", *, created: str = "2026-01-01T00:00:00Z", **status: Any
) -> CachedJob:
    return cached_job(
        {
            "metadata": {
                "name": name,
                "namespace": "team",
                "uid": f"uid-{name}",
                "resourceVersion": "1",
                "creationTimestamp": created,
            },
            "spec": {"algorithm": {"grpo": {}}},
            "status": {"phase": phase, **status},
        }
    )


def exporter(jobs: Sequence[CachedJob], telemetry: RedisTelemetry, **options: Any) -> JobMetricsExporter:
    return JobMetricsExporter(lambda: jobs, telemetry, allow, clock=lambda: NOW, **options)


def parse(page: bytes) -> Page:
    """Return (family, value of its own label) -> job -> value; empty where there is no label or no job."""
    result: Page = {}
    for family in text_string_to_metric_families(page.decode()):
        for sample in family.samples:
            labels = dict(sample.labels)
            name, namespace = labels.pop("job_name", ""), labels.pop("namespace", "")
            assert (namespace == "team") == bool(name)
            [value] = labels.values() or [""]
            key = (sample.name, value)
            assert name not in result.setdefault(key, {}), "two equal series: Prometheus rejects the page"
            result[key][name] = sample.value
    return result


def series_of(page: Page, name: str) -> dict[tuple[str, str], float]:
    return {key: values[name] for key, values in page.items() if name in values}


async def report(server: LocalRedisServer, name: str, step: int, values: dict[str, float]) -> None:
    """Write a step as the job's driver does."""
    access = server.access.model_copy(update={"prefix": f"kubealign:team:{name}:"})
    async with ReadModelWriter(access) as writer:
        writer.set_status(step=step, max_steps=10, weight_version=step, started_at=NOW - 600)
        writer.add_metrics(step, 1, values)
        writer.set_heartbeat("driver", {"role": "driver", "step": step})
    assert not writer.dropped


async def test_a_running_job_has_its_status_and_its_last_step(
    server: LocalRedisServer, client: redis.asyncio.Redis, telemetry: Telemetry
) -> None:
    values = {metric: float(number) for number, metric in enumerate(STEP_METRICS)}
    values |= {"reward/math/mean": 0.5, "val/exact": 0.75, "val/loss": math.nan, "unknown/metric": 1.0}
    await report(server, "sums", 6, {"reward/mean": -1.0})
    await report(server, "sums", 7, values)
    roles = [{"name": "trainer", "replicas": 2, "ready": 1}, {"name": "driver", "replicas": 1, "ready": 1}]
    running = job(
        "sums", restarts=2, activeSince="2027-01-15T07:59:00Z", activeSeconds=30.5, roles=[*roles, roles[0]]
    )
    page = parse(await exporter([running], telemetry).page(SCRAPER))
    series = series_of(page, "sums")
    assert series[("kubealign_job_info", "grpo")] == series[("kubealign_job_phase", "Running")] == 1
    assert series[("kubealign_job_restarts", "")] == 2
    assert series[("kubealign_job_active_seconds_total", "")] == 90.5
    assert series[("kubealign_job_role_replicas", "trainer")] == 2
    assert series[("kubealign_job_role_ready", "trainer")] == 1
    assert series[("kubealign_job_step", "")] == series[("kubealign_job_weight_version", "")] == 7
    assert series[("kubealign_job_max_steps", "")] == 10
    assert series[("kubealign_job_driver_up", "")] == 1
    for metric, (family, label) in STEP_METRICS.items():
        assert series[(family.name, label)] == values[metric], metric
    assert series[("kubealign_job_reward_source_mean", "math")] == 0.5
    assert series[("kubealign_job_validation", "exact")] == 0.75
    assert math.isnan(series[("kubealign_job_validation", "loss")])
    assert {family for family, _ in series} == {family.name for family in FAMILIES}
    [(entry, _)] = await client.xrevrange("kubealign:team:sums:metrics", count=1)
    stored = int(entry.split(b"-")[0]) / 1000
    assert series[("kubealign_job_progress_timestamp_seconds", "")] == max(NOW - 600, stored)
    assert page[("kubealign_job_metrics_jobs", "exported")][""] == 1
    assert page[("kubealign_job_metrics_redis_up", "")][""] == 1


@pytest.mark.parametrize("entries", [1, 2, 5])
async def test_the_entries_of_a_step_are_merged(
    server: LocalRedisServer, client: redis.asyncio.Redis, telemetry: Telemetry, entries: int
) -> None:
    """A validation adds an entry to its step; an earlier step is not shown."""
    await report(server, "sums", 6, {"val/earlier": 0.25})
    for number in range(entries):
        await report(server, "sums", 7, {f"val/{number}": float(number), "val/last": float(number)})
    page = parse(await exporter([job("sums")], telemetry).page(SCRAPER))
    shown = {
        label: values["sums"] for (family, label), values in page.items() if family.endswith("_validation")
    }
    assert shown == {str(number): number for number in range(entries)} | {"last": entries - 1}


@pytest.mark.parametrize(
    "document",
    [
        pytest.param(b"[" * 100_000, id="deep"),
        pytest.param(b'{"reward/mean": \xff}', id="not-utf-8"),
        pytest.param(b'{"reward/mean": ' + b"9" * 400 + b"}", id="long-integer"),
        pytest.param(b'{"reward/mean": "' + b"p" * 300_000 + b'"}', id="large"),
        pytest.param(None, id="another-type"),
    ],
)
async def test_an_unreadable_job_costs_its_own_series_only(
    server: LocalRedisServer, client: redis.asyncio.Redis, telemetry: Telemetry, document: bytes | None
) -> None:
    await report(server, "sums", 7, {"reward/mean": 0.25})
    if document is None:
        await client.set("kubealign:team:evil:metrics", "x")
    else:
        await client.xadd("kubealign:team:evil:metrics", {"step": "1", "json": document})
    export = exporter([job("evil"), job("sums")], telemetry)
    page = parse(await export.page(SCRAPER))
    assert page[("kubealign_job_reward_mean", "")] == {"sums": 0.25}
    assert len(series_of(page, "evil")) == PLAIN_SERIES
    assert page[("kubealign_job_metrics_jobs", "unreadable")][""] == 1
    assert page[("kubealign_job_metrics_jobs", "exported")][""] == 1
    # The unreadable job is not read again at every scrape.
    telemetry.reads.clear()
    await export._render()
    assert telemetry.reads == [JobRef("team", "sums")]


async def test_names_and_numbers_that_a_job_invents_are_bounded(
    server: LocalRedisServer, client: redis.asyncio.Redis, telemetry: Telemetry
) -> None:
    odd: dict[str, Any] = {f"val/{number}": number for number in range(1000)}
    odd |= {f"reward/{number}/mean": 1e308 for number in range(1000)}
    odd |= {"val/" + "n" * 1000: 1, 'val/quote"\n': 1, "val/\u0628": 1, "val/": 1}
    odd |= {"reward/mean": "inf", "reward/std": True, "seconds/step": None, "kl/reference": "high"}
    key = "kubealign:team:evil:"
    # A time of the far future, chosen by the job.
    await client.xadd(f"{key}metrics", {"step": "1e300", "json": json.dumps(odd)}, id="99999999999999999-0")
    await client.hset(f"{key}status", mapping={"step": "nan", "started_at": "1e300", "max_steps": "-5"})
    await client.set(f"{key}heartbeat:driver", "x" * 50_000)
    await report(server, "sums", 7, {"reward/mean": 0.25})
    evil = job(
        "evil",
        restarts="many",
        activeSince="yesterday",
        roles=[{"name": f"r{number}", "replicas": True} for number in range(1000)] + [None, {"name": 3}],
    )
    page = parse(await exporter([evil, job("sums")], telemetry).page(SCRAPER))
    series = series_of(page, "evil")
    families = [family for family, _ in series]
    assert families.count("kubealign_job_validation") == MAX_NAMES
    assert families.count("kubealign_job_reward_source_mean") == MAX_NAMES
    assert families.count("kubealign_job_role_ready") == 64
    assert math.isinf(series[("kubealign_job_reward_mean", "")])
    for absent in ("reward_std", "step_seconds", "kl_nats_per_token", "progress_timestamp_seconds"):
        assert f"kubealign_job_{absent}" not in families
    assert series[("kubealign_job_driver_up", "")] == 0
    assert page[("kubealign_job_reward_mean", "")]["sums"] == 0.25


async def test_odd_names_have_no_series(
    server: LocalRedisServer, client: redis.asyncio.Redis, telemetry: Telemetry
) -> None:
    names = ("n" * 65, 'quote"', "line\nbreak", "\u0628", "", "a b")
    await report(server, "evil", 1, {f"val/{name}": 1.0 for name in names} | {"val/" + "n" * 64: 2.0})
    page = parse(await exporter([job("evil")], telemetry).page(SCRAPER))
    names_shown = [label for family, label in page if family == "kubealign_job_validation"]
    assert names_shown == ["n" * 64]


async def test_only_active_and_just_ended_jobs_have_series(
    server: LocalRedisServer, client: redis.asyncio.Redis, telemetry: Telemetry
) -> None:
    for name in ("just", "long", "paused", "waits"):
        await report(server, name, 3, {"reward/mean": 0.5})
    jobs = [
        job("just", "Succeeded", completionTime="2027-01-15T07:55:01Z"),
        job("long", "Succeeded", completionTime="2027-01-15T07:54:59Z"),
        job("odd", "Failed"),
        job("paused", "Suspended"),
        job("waits", ""),
    ]
    page = parse(await exporter(jobs, telemetry).page(SCRAPER))
    assert page[("kubealign_job_reward_mean", "")] == {"just": 0.5}
    assert {name for values in page.values() for name in values} == {"", "just", "paused", "waits"}
    assert page[("kubealign_job_phase", "Unseen")] == {"waits": 1}
    assert ("kubealign_job_driver_up", "") not in page, "no driver runs"
    assert JobRef("team", "paused") not in telemetry.reads


async def test_a_page_has_a_limit_and_keeps_the_newest_jobs(
    server: LocalRedisServer, client: redis.asyncio.Redis, telemetry: Telemetry
) -> None:
    jobs = [job(f"job-{day:02}", created=f"2026-01-{day:02}T00:00:00Z") for day in range(1, 29)]
    full = await exporter(jobs, telemetry).page(SCRAPER)
    empty = await exporter([], telemetry).page(SCRAPER)
    limit = 4096
    page = await exporter(jobs, telemetry, max_page_bytes=limit).page(SCRAPER)
    # The texts of the families do not grow with the jobs.
    texts = sum(len(line) + 1 for line in full.splitlines() if line.startswith(b"#"))
    assert len(page) <= limit + texts + len(empty)
    parsed = parse(page)
    shown = sorted(parsed[("kubealign_job_info", "grpo")])
    assert 2 < len(shown) < len(jobs)
    assert shown == sorted(item.ref.name for item in jobs)[-len(shown) :]
    assert parsed[("kubealign_job_metrics_jobs", "omitted")][""] == len(jobs) - len(shown)


async def test_without_redis_jobs_keep_the_series_of_their_status(
    server: LocalRedisServer, client: redis.asyncio.Redis, unused_tcp_port: int
) -> None:
    access = server.access.model_copy(update={"port": unused_tcp_port})
    away = Telemetry(access)
    page = parse(await exporter([job("sums")], away).page(SCRAPER))
    await away.close()
    assert len(series_of(page, "sums")) == PLAIN_SERIES
    assert page[("kubealign_job_metrics_redis_up", "")][""] == 0
    assert page[("kubealign_job_metrics_jobs", "omitted")][""] == 1


async def test_a_job_keeps_its_last_series_while_redis_is_away(
    server: LocalRedisServer, client: redis.asyncio.Redis, telemetry: Telemetry
) -> None:
    await report(server, "sums", 7, {"reward/mean": 0.25})
    sources: list[RedisTelemetry] = [telemetry]

    class Switch:
        """The real reader, or one of a Redis that does not answer."""

        async def summary(self, ref: JobRef) -> JobSummary:
            return await sources[-1].summary(ref)

    jobs = [job("sums")]
    export = JobMetricsExporter(lambda: jobs, Switch(), allow, clock=lambda: NOW)
    await export._render()
    away = RedisTelemetry(server.access.model_copy(update={"port": 1}))
    sources.append(away)
    page = parse((await export._render())[0])
    assert page[("kubealign_job_reward_mean", "")] == {"sums": 0.25}
    assert page[("kubealign_job_metrics_redis_up", "")][""] == 0
    # A job of the same name does not inherit them.
    jobs[:] = [replace(jobs[0], uid="another")]
    page = parse((await export._render())[0])
    assert len(series_of(page, "sums")) == PLAIN_SERIES
    await away.close()


async def test_jobs_are_read_in_the_order_of_their_last_reading(
    server: LocalRedisServer, client: redis.asyncio.Redis, telemetry: Telemetry
) -> None:
    jobs = [job("one"), job("two")]
    export = exporter(jobs, telemetry)
    await export._render()
    jobs.append(job("three"))
    telemetry.reads.clear()
    await export._render()
    assert telemetry.reads[0] == JobRef("team", "three"), "a job that was never read comes first"


async def test_scrapes_within_five_seconds_share_a_reading(
    server: LocalRedisServer, client: redis.asyncio.Redis, telemetry: Telemetry
) -> None:
    export = exporter([job("sums")], telemetry)
    pages = {await export.page(SCRAPER) for _ in range(5)}
    assert len(pages) == len(telemetry.reads) == 1


async def test_the_page_requires_a_token_and_the_right_to_scrape(telemetry: Telemetry) -> None:
    access = RuledAccess(MemoryBackend(), {"scraper": Person("prometheus"), "jane": Person("jane")})

    async def authorize(caller: Caller) -> None:
        if caller.name != "prometheus":
            raise Forbidden(f"{caller.name} may not get /metrics")

    export = JobMetricsExporter(lambda: [job("sums")], telemetry, authorize)
    async with browsing(create_app(access, job_metrics=export)) as browser:

        async def get(token: str = "") -> httpx.Response:
            return await browser.get("/metrics/jobs", headers=bearer(token) if token else {})

        assert (await get()).status_code == (await get("wrong")).status_code == 401
        refused = await get("jane")
        assert refused.status_code == 403 and "sums" not in refused.text
        allowed = await get("scraper")
        assert allowed.status_code == 200 and 'job_name="sums"' in allowed.text
        assert allowed.headers["content-type"].startswith("text/plain; version=")
        # The page without authentication names no job.
        assert "sums" not in (await browser.get("/metrics")).text
    async with browsing(create_app(access), bearer("scraper")) as browser:
        assert (await browser.get("/metrics/jobs")).status_code == 404
