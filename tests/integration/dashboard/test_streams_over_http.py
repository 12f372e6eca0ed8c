"""Streams over real sockets: resumption, shutdown and limits."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest

from kubealign_dashboard.app import create_app
from kubealign_dashboard.streams.hub import StreamLimits
from kubealign_dashboard.streams.job_feed import PollIntervals
from support.dashboard import JOBS, LETTERS, Seen, events, site_with_jobs
from support.memory_backend import MemoryBackend
from support.ruled_access import Person, RuledAccess, bearer
from support.served import served

pytestmark = pytest.mark.timeout(120, method="signal")

STREAM = f"{JOBS}/letters/stream"
QUICK = PollIntervals(metrics=0.02, processes=0.05, finished=0.05)


@pytest.fixture
async def site(tmp_path: Path) -> MemoryBackend:
    return await site_with_jobs(tmp_path)


@asynccontextmanager
async def stream(
    address: str, path: str = STREAM, last: str = "", token: str = "jane"
) -> AsyncIterator[tuple[httpx.Response, AsyncIterator[Seen]]]:
    """Open a stream like a browser."""
    headers = {**bearer(token), **({"Last-Event-ID": last} if last else {})}
    async with (
        httpx.AsyncClient(base_url=address, timeout=60) as client,
        client.stream("GET", path, headers=headers) as response,
    ):
        yield response, events(response.aiter_text())


def access(site: MemoryBackend, **people: Person) -> RuledAccess:
    return RuledAccess(site, {"jane": Person("jane"), **people})


async def test_nothing_is_lost_during_a_server_restart(site: MemoryBackend, unused_tcp_port: int) -> None:
    seen: list[Seen] = []
    for number in range(3):
        site.report(LETTERS, number + 1, {"reward/mean": 0.1})
        with served(create_app(access(site), poll_intervals=QUICK), unused_tcp_port) as address:
            last = seen[-1].id if seen else ""
            async with stream(address, last=last) as (response, coming):
                assert response.headers["content-type"].startswith("text/event-stream")
                assert response.headers["cache-control"] == "no-store"
                site.report(LETTERS, 10 * (number + 1), {"reward/mean": 0.1})
                async for event in coming:
                    seen.append(event)
                    if event.event == "metrics" and event.data["items"][-1]["step"] == 10 * (number + 1):
                        break
    steps = [item["step"] for event in seen if event.event == "metrics" for item in event.data["items"]]
    assert steps == [1, 10, 2, 20, 3, 30]


async def test_the_server_shuts_down_with_open_streams(site: MemoryBackend) -> None:
    with ExitStack() as server:
        address = server.enter_context(served(create_app(access(site), poll_intervals=QUICK)))
        async with stream(address) as (_, job), stream(address, "/api/v1/stream") as (_, listed):
            assert (await anext(job)).event == "job"
            assert (await anext(listed)).event == "ready"
            # It fails where the server does not come to its end.
            await asyncio.to_thread(server.close)
            assert {event.event async for event in job} <= {"roles"}
            assert [event async for event in listed] == []


async def test_a_stream_ends_when_its_token_expires(site: MemoryBackend) -> None:
    people = access(site, brief=Person("brief", expires=time.time() + 2))
    with served(create_app(people, poll_intervals=QUICK)) as address:
        async with stream(address, token="brief") as (_, coming):
            names = [event.event async for event in coming]
        assert names[0] == "job"
        async with stream(address, token="brief") as (response, _):
            assert response.status_code == 401


async def test_the_number_of_streams_is_limited(site: MemoryBackend) -> None:
    people, limits = access(site, bob=Person("bob")), StreamLimits(total=1)
    with served(create_app(people, poll_intervals=QUICK, stream_limits=limits)) as address:
        async with stream(address) as (_, coming):
            await anext(coming)
            async with stream(address, token="bob") as (refused, _):
                assert refused.status_code == 429
                assert refused.headers["retry-after"]
                assert refused.headers["content-type"] == "application/problem+json"
                assert "1 streams are open, the limit of all users" in (await refused.aread()).decode()


async def test_one_user_does_not_take_the_streams_of_others(site: MemoryBackend) -> None:
    people, limits = access(site, bob=Person("bob")), StreamLimits(per_caller=1)
    with served(create_app(people, poll_intervals=QUICK, stream_limits=limits)) as address:
        async with stream(address) as (_, coming):
            await anext(coming)
            async with stream(address, "/api/v1/stream") as (refused, _):
                assert refused.status_code == 429
                assert "jane has 1 open streams, the limit per user" in (await refused.aread()).decode()
            async with stream(address, token="bob") as (accepted, others):
                assert accepted.status_code == 200
                await anext(others)
        async with stream(address) as (again, _):
            assert again.status_code == 200


async def test_logs_are_followed(site: MemoryBackend) -> None:
    site.log(LETTERS, "driver", "step 1")
    async with httpx.AsyncClient(timeout=60) as client:
        with served(create_app(access(site))) as address:
            url = f"{address}{JOBS}/letters/logs"
            async with client.stream("GET", url, params={"follow": True}, headers=bearer("jane")) as response:
                assert response.headers["content-type"] == "application/x-ndjson"
                lines = (line async for line in response.aiter_lines() if line)
                assert await anext(lines) == '{"process":"driver","text":"step 1"}'
                site.log(LETTERS, "driver", "step 2 <b>")
                assert await anext(lines) == '{"process":"driver","text":"step 2 <b>"}'
                site.status(LETTERS, phase="Succeeded")
                assert [line async for line in lines] == []
