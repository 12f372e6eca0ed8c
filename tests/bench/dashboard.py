"""Measures a local dashboard that lists ten thousand runs: `python -m tests.bench.dashboard [--help]`.

The runs are folders as `kubealign run` leaves them; the dashboard is `kubealign dashboard`.
`dashboard_cluster` measures the dashboard of a cluster."""

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import aiohttp
from tests.bench.dashboard_http import Target, pages, streams, table

from kubealign.local.run_dir.layout import RunDirectory
from kubealign.local.run_dir.status import Phase, RunStatus

KUBEALIGN = Path(sys.executable).with_name("kubealign")
_PHASES = (Phase.SUCCEEDED, Phase.FAILED, Phase.STOPPED)
_STREAMS = 200
_FOLLOWED = 20
_FIRST_SECONDS = 300.0
_CHANGES_A_SECOND = 20
_QUERIES = {
    "first page": {},
    "one phase": {"phase": "Succeeded"},
    "search": {"search": "077"},
    "labels": {"labelSelector": "team in (a,b),!old"},
    "by reward": {"sort": "-reward"},
    "by name, 500": {"sort": "name", "limit": "500"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=100, help="requests of each kind")
    parser.add_argument("--clients", type=int, default=4, help="concurrent clients")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long the streams stay open")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder) / "runs"
        for number in range(arguments.jobs):
            _run(runs, number)
        with _dashboard(runs) as target:
            asyncio.run(_measured(runs, target, arguments))


async def _measured(runs: Path, target: Target, arguments: argparse.Namespace) -> None:
    began = time.monotonic()
    timeout = aiohttp.ClientTimeout(total=_FIRST_SECONDS)
    async with (
        aiohttp.ClientSession(target.url, headers=target.headers, timeout=timeout) as session,
        session.get("/api/v1/alignmentjobs") as answer,
    ):
        answer.raise_for_status()
    seconds = time.monotonic() - began
    print(f"every folder read for the first page: {seconds:.1f} s, {target.memory():.0f} MiB", flush=True)
    latencies = await pages(target, "/api/v1/alignmentjobs", _QUERIES, arguments.rounds, arguments.clients)
    paths = [
        f"/api/v1/namespaces/default/alignmentjobs/{_name(number % _FOLLOWED)}/stream"
        for number in range(_STREAMS)
    ]
    changing = asyncio.create_task(_change(runs))
    try:
        streamed = await streams(target, paths, arguments.seconds)
    finally:
        changing.cancel()
    print(table(latencies, streamed, _STREAMS))


async def _change(runs: Path) -> None:
    """Append steps to the metrics of the followed jobs."""
    step = 0
    while True:
        step += 1
        for number in range(_FOLLOWED):
            line = {"step": step, "fence": 1, "reward/mean": random.random(), "seconds/step": 1.0}
            with (RunDirectory(runs / _name(number)).root / "metrics.jsonl").open("a") as metrics:
                metrics.write(json.dumps(line) + "\n")
            await asyncio.sleep(1 / _CHANGES_A_SECOND)


def _run(runs: Path, number: int) -> None:
    """Write the folder of a finished run."""
    folder = RunDirectory(runs / _name(number))
    folder.root.mkdir(parents=True)
    document = {
        "apiVersion": "kubealign.dev/v1alpha1",
        "kind": "AlignmentJob",
        "metadata": {"name": _name(number), "namespace": "default", "labels": {"team": "abcde"[number % 5]}},
        "spec": {
            "maxSteps": 100,
            "algorithm": {"sft": {"rowsPerStep": 8}},
            "policy": {"model": {"path": "/models/base"}},
            "data": {"demonstrations": {"source": {"path": "/data/rows.jsonl"}}},
        },
    }
    folder.job.write_text(json.dumps(document))
    status = RunStatus(
        phase=_PHASES[number % len(_PHASES)],
        message="stopped at step 50" if number % 3 else "",
        step=number % 100,
        runner=1,
        started_at=1.7e9 + number,
        ended_at=1.7e9 + number + 60,
        active_seconds=60.0,
        metrics={"reward/mean": number % 1000 / 1000},
    )
    status.write(folder.status)


def _name(number: int) -> str:
    return f"run-{number:05}"


@contextmanager
def _dashboard(runs: Path) -> Iterator[Target]:
    command = [KUBEALIGN, "dashboard", "--runs-dir", str(runs), "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = urlsplit(process.stdout.readline().removeprefix("dashboard: ").strip())
        [token] = parse_qs(address.query)["token"]
        yield Target(f"http://{address.netloc}", token, process.pid)
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    main()
