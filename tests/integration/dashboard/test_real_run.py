"""A real job: created, followed, suspended, resumed and deleted over HTTP."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from kubealign.local.run_dir.layout import RunDirectory
from kubealign_dashboard.app import create_app
from kubealign_dashboard.local.access import LocalAccess
from support.dashboard import Seen, events, eventually
from support.served import served
from support.tiny_jobs import PACED_LETTER_A, online_job, set_pace, write_reward

pytestmark = pytest.mark.timeout(280, method="signal")

JOBS = "/api/v1/namespaces/default/alignmentjobs"
TOKEN = "a token of this test"


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Path]:
    """Stop the runner of a failed test."""
    folder = tmp_path / "runs"
    yield folder
    for root in folder.glob("[!.]*/"):
        holder = RunDirectory(root).lock().read_holder()
        if holder is not None and holder.pid:
            os.kill(holder.pid, signal.SIGKILL)


def paced_job(folder: Path) -> dict[str, Any]:
    """Return a job that runs for as long as the test needs."""
    pace = set_pace(folder, 0.1)
    return online_job(
        folder,
        "letters",
        {"grpo": {"promptsPerStep": 4, "samplesPerPrompt": 2}},
        maxSteps=100_000,
        rewards=[write_reward(folder, PACED_LETTER_A.format(file=str(pace)))],
    )


@pytest.mark.full
async def test_the_lifecycle_of_a_job_over_http(tmp_path: Path, runs: Path) -> None:
    app = create_app(LocalAccess(runs, TOKEN), hosts=["127.0.0.1"])
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with served(app) as address:
        async with httpx.AsyncClient(base_url=address, headers=headers, timeout=120) as client:
            created = await client.post(JOBS, json=paced_job(tmp_path))
            assert created.status_code == 201, created.text
            seen: list[Seen] = []
            following = asyncio.create_task(_follow(client, seen))
            await eventually(lambda: len(_steps(seen)) >= 3, 120)
            listed = (await client.get(JOBS, params={"phase": "Running"})).json()
            assert [job["metadata"]["name"] for job in listed["items"]] == ["letters"]
            figures = (await client.get(f"{JOBS}/letters/metrics")).json()["items"]
            assert [item["step"] for item in figures[:3]] == [1, 2, 3]
            samples = (await client.get(f"{JOBS}/letters/samples")).json()["items"]
            assert samples and samples[0]["prompt"]
            roles = (await client.get(f"{JOBS}/letters/roles")).json()["items"]
            assert {"driver", "trainer", "rollout"} <= {process["role"] for process in roles}
            assert "driver" in (await client.get(f"{JOBS}/letters/logs", params={"role": "driver"})).text
            assert (await client.get(f"{JOBS}/letters/health")).status_code == 200
            suspended = await client.put(f"{JOBS}/letters/suspend", json={"suspend": True})
            assert suspended.status_code == 200, suspended.text
            await eventually(lambda: _phase(seen) == "Suspended", 120)
            before = max(_steps(seen))
            await client.put(f"{JOBS}/letters/suspend", json={"suspend": False})
            await eventually(lambda: max(_steps(seen)) > before, 120)
            assert (await client.delete(f"{JOBS}/letters")).status_code == 200
            await asyncio.wait_for(following, 60)
            assert seen[-1].event == "gone"
            assert (await client.get(f"{JOBS}/letters")).status_code == 404
    entries = [item["entry"] for event in seen if event.event == "metrics" for item in event.data["items"]]
    assert len(entries) == len(set(entries))


async def _follow(client: httpx.AsyncClient, seen: list[Seen]) -> None:
    async with client.stream("GET", f"{JOBS}/letters/stream") as response:
        coming: AsyncIterator[Seen] = events(response.aiter_text())
        async for event in coming:
            seen.append(event)


def _steps(seen: list[Seen]) -> list[int]:
    return [item["step"] for event in seen if event.event == "metrics" for item in event.data["items"]]


def _phase(seen: list[Seen]) -> str:
    jobs = [event.data for event in seen if event.event == "job"]
    return str(jobs[-1]["status"].get("phase", "")) if jobs else ""
