"""Applies jobs to an API server and records when their pods and statuses change."""

import asyncio
import json
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp

Json = dict[str, Any]

_JOBS = "/apis/kubealign.dev/v1alpha1/namespaces/{namespace}/alignmentjobs"
_PODS = "/api/v1/namespaces/{namespace}/pods"
_JOB, _PROCESS = "kubealign.dev/job", "kubealign.dev/process"
_REPORT_SECONDS = 5.0


@dataclass(frozen=True)
class Server:
    """Address and credentials of the API server."""

    url: str
    ca: str
    token: str
    namespace: str


@dataclass(frozen=True)
class Load:
    """Jobs to apply. `per_second`: rate; None: as fast as the server accepts them."""

    jobs: Sequence[Json]
    per_second: float | None
    #: Processes whose pods the operator creates immediately, before anything is ready.
    first: Sequence[str]
    seconds: float
    #: Concurrent requests. 1: like kubectl.
    in_flight: int = 1


@dataclass
class Seen:
    """Times by job, in seconds of the monotonic clock."""

    asked: dict[str, float] = field(default_factory=dict)
    applied: dict[str, float] = field(default_factory=dict)
    created: dict[str, float] = field(default_factory=dict)
    driver_ready: dict[str, float] = field(default_factory=dict)
    reported_ready: dict[str, float] = field(default_factory=dict)
    running: dict[str, float] = field(default_factory=dict)


def measure(server: Server, load: Load) -> Seen:
    """Apply the jobs and watch until every driver's readiness is in its job's status.

    Raises TimeoutError after `load.seconds`. Run it in its own process, so that nothing delays it."""
    return asyncio.run(_Bystander(server, load).measure())


class _Bystander:
    def __init__(self, server: Server, load: Load) -> None:
        self._server = server
        self._load = load
        self._seen = Seen()
        self._all_reported = asyncio.Event()
        self._missing = {job["metadata"]["name"]: set(load.first) for job in load.jobs}

    async def measure(self) -> Seen:
        tls = ssl.create_default_context(cadata=self._server.ca)
        headers = {"Authorization": f"Bearer {self._server.token}"}
        connector = aiohttp.TCPConnector(ssl=tls, limit=0)
        async with (
            asyncio.timeout(self._load.seconds),
            aiohttp.ClientSession(
                self._server.url, headers=headers, connector=connector, read_bufsize=1 << 20
            ) as session,
            asyncio.TaskGroup() as tasks,
        ):
            watches = [
                tasks.create_task(self._watch(session, path, take))
                for path, take in ((_PODS, self._take_pod), (_JOBS, self._take_job))
            ]
            tasks.create_task(self._apply(session))
            reporting = tasks.create_task(self._report())
            await self._all_reported.wait()
            for task in (*watches, reporting):
                task.cancel()
        return self._seen

    async def _apply(self, session: aiohttp.ClientSession) -> None:
        gate = asyncio.Semaphore(self._load.in_flight)
        began = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for number, job in enumerate(self._load.jobs):
                if self._load.per_second is not None:
                    await asyncio.sleep(began + number / self._load.per_second - time.monotonic())
                await gate.acquire()
                tasks.create_task(self._post(session, job, gate))

    async def _post(self, session: aiohttp.ClientSession, job: Json, gate: asyncio.Semaphore) -> None:
        name = job["metadata"]["name"]
        self._seen.asked[name] = time.monotonic()
        try:
            path = _JOBS.format(namespace=self._server.namespace)
            async with session.post(path, json=job) as answer:
                if answer.status >= 400:
                    raise RuntimeError(f"{name} was refused: {await answer.text()}")
                await answer.read()
            self._seen.applied[name] = time.monotonic()
        finally:
            gate.release()

    async def _watch(self, session: aiohttp.ClientSession, path: str, take: Any) -> None:
        path = path.format(namespace=self._server.namespace)
        async with session.get(path, params={"limit": "1"}) as listed:
            version = (await listed.json())["metadata"]["resourceVersion"]
        while True:
            query = {"watch": "1", "resourceVersion": version, "timeoutSeconds": "600"}
            timeout = aiohttp.ClientTimeout(total=None)
            async with session.get(path, params=query, timeout=timeout) as answer:
                async for line in answer.content:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        raise RuntimeError(f"the watch of {path} broke: {event['object'].get('message')}")
                    version = event["object"]["metadata"]["resourceVersion"]
                    take(event["object"], time.monotonic())

    def _take_pod(self, pod: Json, now: float) -> None:
        labels = pod["metadata"].get("labels", {})
        job, process = labels.get(_JOB, ""), labels.get(_PROCESS, "")
        missing = self._missing.get(job)
        if missing is not None and process in missing:
            missing.discard(process)
            if not missing:
                self._seen.created[job] = now
        conditions = pod.get("status", {}).get("conditions", ())
        ready = any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)
        if process == "driver" and ready:
            self._seen.driver_ready.setdefault(job, now)

    def _take_job(self, job: Json, now: float) -> None:
        name, status = job["metadata"]["name"], job.get("status", {})
        if status.get("phase") == "Running":
            self._seen.running.setdefault(name, now)
        for role in status.get("roles", ()):
            if role["name"] == "driver" and role["ready"] > 0:
                self._seen.reported_ready.setdefault(name, now)
        if len(self._seen.reported_ready) == len(self._load.jobs):
            self._all_reported.set()

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(_REPORT_SECONDS)
            seen = self._seen
            print(
                f"  applied {len(seen.applied)}, pods created {len(seen.created)}, "
                f"ready {len(seen.driver_ready)}, reported {len(seen.reported_ready)}",
                flush=True,
            )
