"""Measures a cluster's dashboard that lists ten thousand jobs of a real API server: `python -m ... [--help]`.

The dashboard is a local process with the permissions that the chart grants it. API server and etcd are local
processes too and share the cores with the dashboard."""

import argparse
import asyncio
import base64
import json
import random
import tempfile
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
from tests.bench.dashboard_http import Target, pages, streams, table
from tests.cluster.support.accounts import kubeconfig
from tests.cluster.support.cluster_jobs import rloo, sft
from tests.cluster.support.control_plane import ControlPlane
from tests.cluster.support.dashboard_process import DashboardProcess, charts_account
from tests.cluster.support.door import define

_NAMESPACES = 20
_AT_ONCE = 24
_PHASES = ("Running", "Succeeded", "Failed")
_CHANGES_A_SECOND = 20
_STREAMS = 200
_SERVED_SECONDS = 300.0

Json = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=100, help="requests of each kind")
    parser.add_argument("--clients", type=int, default=4, help="concurrent clients")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long the streams stay open")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ControlPlane(Path(folder) / "control-plane") as running:
        define(running)
        running.kubectl.create_namespace("platform")
        with charts_account(running, Path(folder) / "helm", "platform") as token:
            asyncio.run(_measured(running, Path(folder), token, arguments))


async def _measured(running: ControlPlane, folder: Path, token: str, arguments: argparse.Namespace) -> None:
    headers = {"Authorization": f"Bearer {running.token}"}
    connector = aiohttp.TCPConnector(ssl=running.tls, limit=_AT_ONCE)
    async with aiohttp.ClientSession(running.url, headers=headers, connector=connector) as server:
        began = time.monotonic()
        await _create_jobs(server, running.store, arguments.jobs)
        await _until_served(server, arguments.jobs)
        print(f"{arguments.jobs} jobs made in {time.monotonic() - began:.0f} s", flush=True)
        own = kubeconfig(running, folder / "own.kubeconfig", token)
        dashboard = DashboardProcess(folder, own, STREAMS_PER_USER=_STREAMS)
        began = time.monotonic()
        await asyncio.to_thread(dashboard.start)
        try:
            target = Target(dashboard.url, running.token, dashboard.daemon.pid)
            print(f"ready after {time.monotonic() - began:.1f} s, {target.memory():.0f} MiB", flush=True)
            latencies = await pages(
                target, "/api/v1/alignmentjobs", _queries(), arguments.rounds, arguments.clients
            )
            changing = asyncio.create_task(_change_statuses(server, arguments.jobs))
            streamed = await streams(target, _streams(arguments.jobs), arguments.seconds)
            changing.cancel()
            print(table(latencies, streamed, _STREAMS))
        finally:
            dashboard.daemon.stop()


def _queries() -> dict[str, dict[str, str]]:
    return {
        "newest first": {"limit": "50"},
        "500 of them": {"limit": "500"},
        "by reward": {"sort": "-reward"},
        "one phase": {"phase": "Running", "sort": "name"},
        "part of the name": {"search": "77"},
        "a label": {"labelSelector": "team in (a,b),!old"},
        "all of it": {
            "search": "7",
            "phase": "Failed",
            "algorithm": "rloo",
            "labelSelector": "team=b",
            "sort": "-step",
        },
    }


def _streams(jobs: int) -> list[str]:
    """Return the paths of the streams: half of the list, half of one of twenty jobs."""
    job = "/api/v1/namespaces/{}/alignmentjobs/{}/stream"
    followed = [job.format(_namespace(number), _name(number)) for number in range(min(20, jobs))]
    return [
        *(followed[number % len(followed)] for number in range(_STREAMS // 2)),
        *["/api/v1/stream"] * (_STREAMS // 2),
    ]


def _namespace(number: int) -> str:
    return f"team-{number % _NAMESPACES}"


def _name(number: int) -> str:
    return f"job-{number:05}"


async def _create_jobs(server: aiohttp.ClientSession, store: str, jobs: int) -> None:
    """Create one job of each kind through the API server, which defaults and validates it, and write copies
    of the stored objects directly into etcd, which takes a tenth of the time."""
    for number in range(_NAMESPACES):
        body = {"metadata": {"name": _namespace(number)}}
        async with server.post("/api/v1/namespaces", json=body) as answer:
            answer.raise_for_status()
    for number, kind in enumerate((sft, rloo)):
        async with server.post(_path(number, ""), json=kind(_name(number))) as answer:
            answer.raise_for_status()
        await _patch_status(server, number, 1)
    async with aiohttp.ClientSession(store, connector=aiohttp.TCPConnector(limit=_AT_ONCE)) as etcd:
        kinds = [json.loads(await _stored(etcd, number)) for number in range(2)]
        numbers = iter(range(jobs))

        async def worker() -> None:
            for number in numbers:
                text = json.dumps(_another(kinds[number % 2], number)).encode()
                put = {"key": _encoded(_key(number).encode()), "value": _encoded(text)}
                async with etcd.post("/v3/kv/put", json=put) as answer:
                    answer.raise_for_status()

        await asyncio.gather(*(worker() for _ in range(_AT_ONCE)))


def _another(job: Json, number: int) -> Json:
    metadata = {
        **job["metadata"],
        "name": _name(number),
        "namespace": _namespace(number),
        "uid": str(uuid.UUID(int=number + 1)),
        "labels": {"team": "abcd"[number % 4]},
        "creationTimestamp": datetime.fromtimestamp(1.7e9 + number, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    return {**job, "metadata": metadata, "status": _status(number, number % 10)}


async def _until_served(server: aiohttp.ClientSession, jobs: int) -> None:
    """Wait until the API server serves all jobs of its store. Raises TimeoutError."""
    async with asyncio.timeout(_SERVED_SECONDS):
        while True:
            async with server.get(
                "/apis/kubealign.dev/v1alpha1/alignmentjobs", params={"limit": "1"}
            ) as answer:
                page = await answer.json()
            if answer.ok and page["metadata"].get("remainingItemCount") == jobs - 1:
                return
            await asyncio.sleep(1.0)


async def _stored(etcd: aiohttp.ClientSession, number: int) -> bytes:
    async with etcd.post("/v3/kv/range", json={"key": _encoded(_key(number).encode())}) as answer:
        answer.raise_for_status()
        [entry] = (await answer.json())["kvs"]
        return base64.b64decode(entry["value"])


def _key(number: int) -> str:
    return f"/registry/kubealign.dev/alignmentjobs/{_namespace(number)}/{_name(number)}"


def _encoded(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


def _status(number: int, step: int) -> Json:
    phase = _PHASES[number % len(_PHASES)]
    return {"phase": phase, "step": step, "reward": random.random(), "maxSteps": 1_000_000}


async def _patch_status(server: aiohttp.ClientSession, number: int, step: int) -> None:
    status = _status(number, step)
    headers = {"Content-Type": "application/merge-patch+json"}
    async with server.patch(
        f"{_path(number, _name(number))}/status", json={"status": status}, headers=headers
    ) as answer:
        answer.raise_for_status()


def _path(number: int, name: str) -> str:
    path = f"/apis/kubealign.dev/v1alpha1/namespaces/{_namespace(number)}/alignmentjobs"
    return f"{path}/{name}" if name else path


async def _change_statuses(server: aiohttp.ClientSession, jobs: int) -> None:
    """Change twenty statuses a second, alternately of followed and of arbitrary jobs."""
    for step in range(1, 1_000_000):
        await _patch_status(server, random.randrange(20 if step % 2 else jobs), step)
        await asyncio.sleep(1 / _CHANGES_A_SECOND)


if __name__ == "__main__":
    main()
