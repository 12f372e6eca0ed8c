"""A site that holds its jobs in memory: what a test wants a site to hold, behind the real Protocol.

Nothing runs here. A test plays the job's part: `status`, `report`, `sample`, `say`, `log`, `happen`, `staff`,
`finish`. It may be used from several event loops, one after the other or at once; its methods are called from
one thread at a time.
"""

import asyncio
import contextlib
import copy
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

from kubealign.client.errors import Conflict, JobExists, JobInvalid, JobNotFound, KubealignError, NotPossible
from kubealign.client.query import select_page
from kubealign.client.records import JobEvent, JobPage, JobRecord, JobRef, ListQuery, LogLine, ProcessRecord
from kubealign.kube.merge_patch import apply_merge_patch
from kubealign.read_model import STREAM_START, SampleRecord, StepMetrics
from kubealign.spec.errors import SpecError, SpecErrors
from kubealign.spec.job import AlignmentJob
from kubealign.spec.loading.loader import job_from_document

_FINAL = ("Succeeded", "Failed")


@dataclass
class _Held:
    """One job and all that is known of it."""

    resource: dict[str, Any]
    metrics: list[StepMetrics] = field(default_factory=list)
    samples: list[SampleRecord] = field(default_factory=list)
    heartbeats: dict[str, dict[str, Any]] = field(default_factory=dict)
    processes: list[ProcessRecord] = field(default_factory=list)
    lines: list[LogLine] = field(default_factory=list)
    events: list[JobEvent] = field(default_factory=list)
    result: Path | None = None

    @property
    def record(self) -> JobRecord:
        return JobRecord(copy.deepcopy(self.resource))

    @property
    def final(self) -> bool:
        return self.resource["status"].get("phase") in _FINAL


class MemoryBackend:
    """Implements kubealign.client.backends.base.Site. `failing`: what every request raises from now on."""

    def __init__(self, kind: str = "local", namespace: str = "default") -> None:
        self.kind = kind
        self.namespace = namespace
        self.failing: KubealignError | None = None
        self.closed = False
        self._jobs: dict[JobRef, _Held] = {}
        self._version = 0
        self._waiting: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}

    # What a job does.

    def status(self, ref: JobRef, **fields: Any) -> None:
        """Change fields of the status, by their names in documents; None takes one away."""
        held = self._held(ref)
        self._touch(held, {"status": fields})

    def report(self, ref: JobRef, step: int, values: Mapping[str, float], fence: int = 1) -> str:
        """A step's figures; their entry. The status follows."""
        held = self._held(ref)
        entry = f"{len(held.metrics) + 1}-0"
        held.metrics.append(StepMetrics(entry, step, fence, dict(values)))
        told = {"reward": values.get("reward/mean"), "kl": values.get("kl/reference")}
        self.status(ref, step=step, **{name: value for name, value in told.items() if value is not None})
        return entry

    def sample(self, ref: JobRef, sample: SampleRecord) -> str:
        """A response; its entry."""
        held = self._held(ref)
        entry = f"{len(held.samples) + 1}-0"
        held.samples.append(replace(sample, entry=entry))
        self._notify()
        return entry

    def say(self, ref: JobRef, process: str, **values: Any) -> None:
        """A heartbeat."""
        self._held(ref).heartbeats[process] = values
        self._notify()

    def log(self, ref: JobRef, process: str, *lines: str) -> None:
        self._held(ref).lines += [LogLine(process, line) for line in lines]
        self._notify()

    def happen(self, ref: JobRef, event: JobEvent) -> None:
        self._held(ref).events.append(event)
        self._notify()

    def staff(self, ref: JobRef, *processes: ProcessRecord) -> None:
        """The processes that the job has from now on."""
        self._held(ref).processes = list(processes)
        self._notify()

    def finish(self, ref: JobRef, result: Path) -> None:
        """The job succeeds with this result."""
        self._held(ref).result = result
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self.status(ref, phase="Succeeded", completionTime=now)

    # The Protocol.

    async def create(self, resource: Mapping[str, Any], *, dry_run: bool = False) -> JobRecord:
        self._answer()
        document = {name: copy.deepcopy(value) for name, value in resource.items() if name != "status"}
        job = _validated(document)
        metadata = dict(document["metadata"])
        ref = JobRef(metadata.get("namespace") or self.namespace, job.name)
        if ref in self._jobs:
            raise JobExists(f"there is a job {ref} already: delete it, or choose another name")
        metadata |= {
            "namespace": ref.namespace,
            "uid": str(uuid4()),
            "generation": 1,
            "resourceVersion": str(self._version + 1),
            "creationTimestamp": datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        }
        held = _Held(
            document | {"metadata": metadata, "status": {"phase": "Pending", "maxSteps": job.spec.max_steps}}
        )
        if not dry_run:
            self._jobs[ref] = held
            self._version += 1
            self._notify()
        return held.record

    async def get(self, ref: JobRef) -> JobRecord:
        self._answer()
        return self._held(ref).record

    async def list(self, query: ListQuery) -> JobPage:
        self._answer()
        page = select_page([_Listed(held.record) for held in self._jobs.values()], query)
        return JobPage([listed.record for listed in page.jobs], page.next, page.total, str(self._version))

    async def patch(self, ref: JobRef, patch: Mapping[str, Any]) -> JobRecord:
        self._answer()
        held = self._held(ref)
        changed = apply_merge_patch(held.resource, patch)
        wanted = changed["metadata"].get("resourceVersion")
        if wanted != held.resource["metadata"]["resourceVersion"]:
            raise Conflict(f"{ref} has changed meanwhile: read it again")
        _validated({name: value for name, value in changed.items() if name != "status"})
        if changed["metadata"]["name"] != ref.name:
            raise JobInvalid("metadata.name cannot be changed", [SpecError("is fixed", "metadata.name")])
        grown = changed["spec"] != held.resource["spec"]
        held.resource = changed
        changed["metadata"]["generation"] += int(grown)
        self._touch(held, {})
        return held.record

    async def delete(self, ref: JobRef) -> None:
        self._answer()
        self._held(ref)
        del self._jobs[ref]
        self._version += 1
        self._notify()

    async def scale(self, ref: JobRef, replicas: int) -> JobRecord:
        self._answer()
        held = self._held(ref)
        if not held.record.job.spec.samples:
            raise NotPossible(f"{ref} has no rollout workers: {held.record.algorithm} does not sample")
        record = await self.patch(ref, {"spec": {"rollout": {"replicas": replicas}}})
        self.status(ref, rolloutReplicas=replicas)
        return record

    async def suspend(self, ref: JobRef, suspended: bool) -> JobRecord:
        self._answer()
        held = self._held(ref)
        if held.final:
            raise Conflict(f"{ref} is over: there is nothing to suspend or resume")
        await self.patch(ref, {"spec": {"suspend": suspended}})
        self.status(ref, phase="Suspended" if suspended else "Running")
        return held.record

    async def watch(self, ref: JobRef) -> AsyncIterator[JobRecord]:
        self._answer()
        seen = ""
        uid = self._held(ref).resource["metadata"]["uid"]
        with self._changes() as changed:
            while True:
                changed.clear()
                held = self._jobs.get(ref)
                if held is None or held.resource["metadata"]["uid"] != uid:
                    return
                version = held.resource["metadata"]["resourceVersion"]
                if version != seen:
                    seen = version
                    yield held.record
                else:
                    await changed.wait()

    async def processes(self, ref: JobRef) -> Sequence[ProcessRecord]:
        self._answer()
        held = self._held(ref)
        return [
            replace(process, says=held.heartbeats.get(process.name, process.says))
            for process in held.processes
        ]

    async def logs(
        self,
        ref: JobRef,
        *,
        process: str | None = None,
        role: str | None = None,
        follow: bool = False,
        tail: int | None = None,
    ) -> AsyncIterator[LogLine]:
        self._answer()

        def wanted(line: LogLine) -> bool:
            roles = {member.name: member.role for member in held.processes}
            return process in (None, line.process) and role in (None, roles.get(line.process, line.process))

        held = self._held(ref)
        shown = 0 if tail is None else len(held.lines)
        if tail is not None:
            chosen = [line for line in held.lines if wanted(line)]
            last = {
                name: [line for line in chosen if line.process == name][max(0, count - tail) :]
                for name, count in Counter(line.process for line in chosen).items()
            }
            kept = {id(line) for lines in last.values() for line in lines}
            for line in chosen:
                if id(line) in kept:
                    yield line
        with self._changes() as changed:
            while True:
                changed.clear()
                while shown < len(held.lines):
                    shown += 1
                    if wanted(held.lines[shown - 1]):
                        yield held.lines[shown - 1]
                if not follow or held.final or self._jobs.get(ref) is not held:
                    return
                await changed.wait()

    async def events(self, ref: JobRef) -> Sequence[JobEvent]:
        self._answer()
        return sorted(self._held(ref).events, key=lambda event: event.time)

    async def result(self, ref: JobRef, into: Path | None = None) -> Path:
        self._answer()
        held = self._held(ref)
        if held.result is None:
            raise NotPossible(f"{ref} has no result: it is {held.resource['status'].get('phase')}")
        return held.result

    async def metrics(
        self, ref: JobRef, after: str = STREAM_START, count: int = 1000
    ) -> Sequence[StepMetrics]:
        self._answer()
        return [m for m in self._held(ref).metrics if _order(m.entry) > _order(after)][:count]

    async def samples(
        self,
        ref: JobRef,
        after: str = STREAM_START,
        count: int = 100,
        *,
        step: int | None = None,
        newest: bool = False,
    ) -> Sequence[SampleRecord]:
        self._answer()
        held = [
            sample
            for sample in self._held(ref).samples
            if step in (None, sample.step) and _order(sample.entry) > _order(after)
        ]
        return held[::-1][:count] if newest else held[:count]

    async def heartbeats(self, ref: JobRef, processes: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        self._answer()
        said = self._held(ref).heartbeats
        return {name: said[name] for name in processes if name in said}

    async def close(self) -> None:
        self.closed = True

    # How it is done.

    def _answer(self) -> None:
        if self.failing is not None:
            raise self.failing

    def _held(self, ref: JobRef) -> _Held:
        if ref not in self._jobs:
            raise JobNotFound(f"there is no job {ref.name} in namespace {ref.namespace}")
        return self._jobs[ref]

    def _touch(self, held: _Held, patch: Mapping[str, Any]) -> None:
        self._version += 1
        held.resource = apply_merge_patch(held.resource, patch)
        held.resource["metadata"]["resourceVersion"] = str(self._version)
        self._notify()

    def _notify(self) -> None:
        for event, loop in list(self._waiting.items()):
            loop.call_soon_threadsafe(event.set)

    @contextlib.contextmanager
    def _changes(self) -> Iterator[asyncio.Event]:
        event = asyncio.Event()
        self._waiting[event] = asyncio.get_running_loop()
        try:
            yield event
        finally:
            del self._waiting[event]


@dataclass(frozen=True)
class _Listed:
    """Filters and sort order of a list."""

    record: JobRecord

    @property
    def namespace(self) -> str:
        return self.record.namespace

    @property
    def name(self) -> str:
        return self.record.name

    @property
    def labels(self) -> Mapping[str, str]:
        return self.record.labels

    @property
    def phase(self) -> str:
        return str(self.record.phase or "")

    @property
    def algorithm(self) -> str:
        return self.record.algorithm

    @property
    def created(self) -> float:
        created = self.record.created
        return 0.0 if created is None else created.timestamp()

    @property
    def step(self) -> int:
        return self.record.status.step or 0

    @property
    def reward(self) -> float | None:
        return self.record.status.reward


def _validated(document: Mapping[str, Any]) -> AlignmentJob:
    try:
        return job_from_document(document)
    except SpecErrors as errors:
        raise JobInvalid(str(errors), errors.errors) from None


def _order(entry: str) -> tuple[int, ...]:
    return tuple(int(part) for part in entry.split("-"))
