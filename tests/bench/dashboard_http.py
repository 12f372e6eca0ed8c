"""What a dashboard takes for its answers, asked over HTTP as pages and scripts ask it."""

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
    """`process`: the id of the dashboard's process, whose memory is looked at."""

    url: str
    token: str
    process: int

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"}

    def computed(self) -> float:
        """Seconds of processor time so far."""
        fields = Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> float:
        """Resident, in MiB."""
        lines = Path(f"/proc/{self.process}/status").read_text().splitlines()
        [line] = [line for line in lines if line.startswith("VmRSS:")]
        return int(line.split()[1]) / 1024


@dataclass(frozen=True)
class Latency:
    """Milliseconds of some requests of one kind. `computed`: of processor time that the dashboard took for
    one; nothing else was asked meanwhile."""

    kind: str
    values: Sequence[float]
    computed: float

    def at(self, share: float) -> float:
        """The value that this share of them does not exceed."""
        ordered = sorted(self.values)
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


async def pages(
    target: Target, path: str, queries: Mapping[str, Mapping[str, str]], rounds: int, at_once: int
) -> list[Latency]:
    """Each query `rounds` times by `at_once` clients together; then, as `deep`, from page to page."""
    async with _session(target) as session:
        found: dict[str, list[float]] = {kind: [] for kind in (*queries, "deep")}

        async def asked(kind: str, query: Mapping[str, str]) -> dict[str, Any]:
            began = time.perf_counter()
            async with session.get(path, params=dict(query)) as answer:
                body = await answer.read()
                answer.raise_for_status()
                found[kind].append(1000 * (time.perf_counter() - began))
                held: dict[str, Any] = await answer.json()
                assert body and held["items"], (kind, query)
                return held

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
            latencies.append(_latency(kind, found[kind], target.computed() - began))
        began = target.computed()
        await asyncio.gather(*(through(next(iter(queries.values()))) for _ in range(at_once)))
        return [*latencies, _latency("deep", found["deep"], target.computed() - began)]


def _latency(kind: str, values: Sequence[float], seconds: float) -> Latency:
    return Latency(kind, values, 1000 * seconds / len(values))


@dataclass(frozen=True)
class Streamed:
    """Memory in MiB before any stream, with all open, and after a while of changes; `events`: how many each
    stream got at least and at most."""

    before: float
    opened: float
    after: float
    closed: float
    events: tuple[int, int]


async def streams(target: Target, paths: Sequence[str], seconds: float) -> Streamed:
    """All of these streams at once, for so long. Whoever calls sees to it that something changes."""
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
    """As Markdown."""
    lines = [
        "| a page of the list | requests | p50 ms | p99 ms | most ms | of it processor, mean ms |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {held.kind} | {len(held.values)} | {held.at(0.5):.0f} | {held.at(0.99):.0f} | {held.at(1):.0f} |"
        f" {held.computed:.1f} |"
        for held in latencies
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
