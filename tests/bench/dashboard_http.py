"""Measures latency, processor time and memory of a dashboard over HTTP, with the requests of its pages."""

import asyncio
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

_SECONDS = 30.0
_DEEP_PAGES = 20


@dataclass(frozen=True)
class Target:
    """A dashboard. `process`: process id of the dashboard, whose memory is measured."""

    url: str
    token: str
    process: int

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def computed(self) -> float:
        """Return the processor time used so far, in seconds."""
        fields = Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> float:
        """Return the resident memory in MiB."""
        lines = Path(f"/proc/{self.process}/status").read_text().splitlines()
        [line] = [line for line in lines if line.startswith("VmRSS:")]
        return int(line.split()[1]) / 1024


@dataclass(frozen=True)
class Latency:
    """Latencies of the requests of one kind in milliseconds. `computed`: mean processor time of the dashboard
    per request; no other requests are sent meanwhile."""

    kind: str
    values: Sequence[float]
    computed: float

    def at(self, share: float) -> float:
        """Return the quantile of the latencies at this share."""
        ordered = sorted(self.values)
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


async def pages(
    target: Target, path: str, queries: Mapping[str, Mapping[str, str]], rounds: int, at_once: int
) -> list[Latency]:
    """Send each query `rounds` times from `at_once` clients; then follow the pages of the first one
    (`deep`)."""
    async with _session(target) as session:
        milliseconds: dict[str, list[float]] = {kind: [] for kind in (*queries, "deep")}

        async def asked(kind: str, query: Mapping[str, str]) -> dict[str, Any]:
            began = time.perf_counter()
            async with session.get(path, params=dict(query)) as answer:
                body = await answer.read()
                answer.raise_for_status()
                milliseconds[kind].append(1000 * (time.perf_counter() - began))
                document: dict[str, Any] = await answer.json()
                assert body and document["items"], (kind, query)
                return document

        async def again(kind: str, query: Mapping[str, str], number: int) -> None:
            for _ in range(number, rounds, at_once):
                await asked(kind, query)

        async def through(query: Mapping[str, str]) -> None:
            following = ""
            for _ in range(_DEEP_PAGES):
                page = await asked("deep", {**query, **({"continue": following} if following else {})})
                following = page["metadata"]["continue"]

        latencies = []
        for kind, query in queries.items():
            began = target.computed()
            await asyncio.gather(*(again(kind, query, number) for number in range(at_once)))
            latencies.append(_latency(kind, milliseconds[kind], target.computed() - began))
        began = target.computed()
        await asyncio.gather(*(through(next(iter(queries.values()))) for _ in range(at_once)))
        return [*latencies, _latency("deep", milliseconds["deep"], target.computed() - began)]


def _latency(kind: str, values: Sequence[float], seconds: float) -> Latency:
    return Latency(kind, values, 1000 * seconds / len(values))


@dataclass(frozen=True)
class Streamed:
    """Memory in MiB before any stream, with all streams open, after a period of changes, and with all closed;
    `events`: minimum and maximum number of events per stream."""

    before: float
    opened: float
    after: float
    closed: float
    events: tuple[int, int]


async def streams(target: Target, paths: Sequence[str], seconds: float) -> Streamed:
    """Follow all streams concurrently for `seconds`. The caller makes sure that jobs change meanwhile."""
    before = target.memory()
    counts = [0] * len(paths)
    ready = [asyncio.Event() for _ in paths]
    async with _session(target, limit=0) as session:

        async def follow(number: int, path: str) -> None:
            timeout = aiohttp.ClientTimeout(total=None, sock_read=_SECONDS)
            async with session.get(path, timeout=timeout) as answer:
                answer.raise_for_status()
                async for line in answer.content:
                    if line.startswith(b"event: "):
                        counts[number] += 1
                        ready[number].set()

        tasks = [asyncio.create_task(follow(number, path)) for number, path in enumerate(paths)]
        try:
            async with asyncio.timeout(_SECONDS):
                await asyncio.gather(*(event.wait() for event in ready))
            opened = target.memory()
            done, _ = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
                raise RuntimeError("a stream ended before its time")
            after = target.memory()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
    return Streamed(before, opened, after, target.memory(), (min(counts), max(counts)))


def _session(target: Target, limit: int = 100) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        target.url,
        headers=target.headers,
        connector=aiohttp.TCPConnector(limit=limit),
        timeout=aiohttp.ClientTimeout(total=_SECONDS),
        read_bufsize=1 << 20,
    )


def table(latencies: Sequence[Latency], streamed: Streamed, count: int) -> str:
    """Format the results as Markdown."""
    lines = [
        "| a page of the list | requests | p50 ms | p99 ms | most ms | of it processor, mean ms |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {latency.kind} | {len(latency.values)} | {latency.at(0.5):.0f} | {latency.at(0.99):.0f} |"
        f" {latency.at(1):.0f} | {latency.computed:.1f} |"
        for latency in latencies
    ]
    least, most = streamed.events
    lines += [
        "",
        "| memory of the dashboard | MiB |",
        "| --- | --- |",
        f"| before any stream | {streamed.before:.0f} |",
        f"| {count} streams open | {streamed.opened:.0f} |",
        f"| at the end, each with {least} to {most} events | {streamed.after:.0f} |",
        f"| all closed | {streamed.closed:.0f} |",
    ]
    return "\n".join(lines)
