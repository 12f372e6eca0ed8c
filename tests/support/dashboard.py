"""A dashboard over jobs in memory, and a reader of its streams."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from fastapi import FastAPI

from kubealign.client.records import JobRef
from support.memory_backend import MemoryBackend
from support.tiny_jobs import online_job, sft_job

JOBS = "/api/v1/namespaces/default/alignmentjobs"
SUMS = JobRef("default", "sums")
LETTERS = JobRef("default", "letters")
ELSEWHERE = JobRef("elsewhere", "secret")


async def site_with_jobs(folder: Path) -> MemoryBackend:
    """Return a backend with three jobs: `sums` trains on rows, `letters` samples, `secret` is in another
    namespace."""
    site = MemoryBackend()
    await site.create(sft_job(folder, SUMS.name))
    await site.create(
        online_job(folder, LETTERS.name, {"grpo": {"promptsPerStep": 4, "samplesPerPrompt": 2}})
    )
    hidden = sft_job(folder, ELSEWHERE.name)
    hidden["metadata"]["namespace"] = ELSEWHERE.namespace
    await site.create(hidden)
    return site


@asynccontextmanager
async def browsing(
    app: FastAPI, headers: Mapping[str, str] | None = None, base: str = "http://127.0.0.1:8000"
) -> AsyncIterator[httpx.AsyncClient]:
    """Return a client that calls the application without a network."""
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=base, headers=dict(headers or {})) as client:
        yield client


async def eventually(check: Callable[[], object], seconds: float = 30.0) -> None:
    """Poll until the condition holds."""
    async with asyncio.timeout(seconds):
        while True:
            if check():
                return
            await asyncio.sleep(0.001)


@dataclass(frozen=True)
class Seen:
    """One server-sent event."""

    event: str
    id: str
    data: Any


async def events(parts: AsyncIterator[bytes | str]) -> AsyncIterator[Seen]:
    """Parse the events of a stream from arbitrary chunks, without comments and `retry`."""
    text = ""
    async for part in parts:
        text += part.decode() if isinstance(part, bytes) else part
        while "\n\n" in text:
            block, _, text = text.partition("\n\n")
            fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
            if "event" in fields:
                yield Seen(fields["event"], fields["id"], json.loads(fields["data"]))
