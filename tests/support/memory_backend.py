"""An in-memory job backend that implements the real Protocol.

No job runs. A test plays the part of the job with `status`, `report`, `sample`, `say`, `log`, `happen`,
`staff` and `finish`. The backend may be used from several event loops, one after the other or concurrently,
but only one thread may call its methods at a time.
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

from kubealign.client.backends.replicas import replicas_patch
from kubealign.client.backends.worker_groups import ROLLOUT
from kubealign.client.errors import Conflict, JobExists, JobInvalid, JobNotFound, KubealignError, NotPossible
from kubealign.client.query import select_page
from kubealign.client.records import JobEvent, JobPage, JobRecord, JobRef, ListQuery, LogLine, ProcessRecord
from kubealign.client.retry import not_retryable_message
from kubealign.human_labels import HumanLabel
from kubealign.kube.merge_patch import apply_merge_patch
from kubealign.read_model import STREAM_START, SampleRecord, StepMetrics
from kubealign.spec.errors import SpecError, SpecErrors
from kubealign.spec.job import AlignmentJob
from kubealign.spec.loading.loader import job_from_document
from kubealign.spec.status import JobPhase
from kubealign.validation_record import ValidationRecord

_FINAL = ("Succeeded", "Failed")


@dataclass
class _JobState:
    """A job with its metrics, samples, heartbeats, processes, logs and events."""

    resource: dict[str, Any]
    metrics: list[StepMetrics] = field(default_factory=list)
    samples: list[SampleRecord] = field(default_factory=list)
    validations: dict[int, list[ValidationRecord]] = field(default_factory=dict)
    heartbeats: dict[str, dict[str, Any]] = field(default_factory=dict)
    processes: list[ProcessRecord] = field(default_factory=list)
    lines: list[LogLine] = field(default_factory=list)
    previous_lines: list[LogLine] = field(default_factory=list)
    events: list[JobEvent] = field(default_factory=list)
    labels: list[HumanLabel] = field(default_factory=list)
    result: Path | None = None

    @property
    def record(self) -> JobRecord:
        return JobRecord(copy.deepcopy(self.resource))

    @property
    def final(self) -> bool:
        return self.resource["status"].get("phase") in _FINAL


class MemoryBackend:
    """Implements kubealign.client.backends.base.JobBackend. `failing`: error that every request raises, if
    set."""

    def __init__(self, kind: str = "local", namespace: str = "default") -> None:
        self.kind = kind
        self.namespace = namespace
        self.failing: KubealignError | None = None
        self.closed = False
        self._jobs: dict[JobRef, _JobState] = {}
        self._version = 0
        self._waiting: dict[asyncio.Event, asyncio.AbstractEventLoop] = {}

    # Actions of a job.

    def status(self, ref: JobRef, **fields: Any) -> None:
        """Change fields of the status, by their names in documents; None removes a field."""
        state = self._state(ref)
        self._touch(state, {"status": fields})

    def report(self, ref: JobRef, step: int, values: Mapping[str, float], fence: int = 1) -> str:
        """Add a step's metrics, update the status, and return the entry id."""
        state = self._state(ref)
        entry = f"{len(state.metrics) + 1}-0"
        state.metrics.append(StepMetrics(entry, step, fence, dict(values)))
        fields = {"reward": values.get("reward/mean"), "kl": values.get("kl/reference")}
        self.status(ref, step=step, **{name: value for name, value in fields.items() if value is not None})
        return entry

    def sample(self, ref: JobRef, sample: SampleRecord) -> str:
        """Add a sample and return its entry id."""
        state = self._state(ref)
        entry = f"{len(state.samples) + 1}-0"
        state.samples.append(replace(sample, entry=entry))
        self._notify()
        return entry

    def validate(self, ref: JobRef, step: int, *records: ValidationRecord) -> None:
        """Replace the responses to held-out prompts at a step."""
        self._state(ref).validations[step] = list(records)

    def say(self, ref: JobRef, process: str, **values: Any) -> None:
        """Record a heartbeat of a process."""
        self._state(ref).heartbeats[process] = values
        self._notify()

    def log(self, ref: JobRef, process: str, *lines: str) -> None:
        self._state(ref).lines += [LogLine(process, line) for line in lines]
        self._notify()

    def log_previous(self, ref: JobRef, process: str, *lines: str) -> None:
        """Add lines of the last failed attempt of a process."""
        self._state(ref).previous_lines += [LogLine(process, line) for line in lines]

    def happen(self, ref: JobRef, event: JobEvent) -> None:
        self._state(ref).events.append(event)
        self._notify()

    def staff(self, ref: JobRef, *processes: ProcessRecord) -> None:
        """Replace the processes of the job."""
        self._state(ref).processes = list(processes)
        self._notify()

    def finish(self, ref: JobRef, result: Path) -> None:
        """Let the job succeed with this result."""
        self._state(ref).result = result
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
        state = _JobState(
            document | {"metadata": metadata, "status": {"phase": "Pending", "maxSteps": job.spec.max_steps}}
        )
        if not dry_run:
            self._jobs[ref] = state
            self._version += 1
            self._notify()
        return state.record

    async def get(self, ref: JobRef) -> JobRecord:
        self._answer()
        return self._state(ref).record

    async def list(self, query: ListQuery) -> JobPage:
        self._answer()
        page = select_page([_Listed(state.record) for state in self._jobs.values()], query)
        return JobPage([listed.record for listed in page.jobs], page.next, page.total, str(self._version))

    async def patch(self, ref: JobRef, patch: Mapping[str, Any]) -> JobRecord:
        self._answer()
        state = self._state(ref)
        changed = apply_merge_patch(state.resource, patch)
        version = changed["metadata"].get("resourceVersion")
        if version != state.resource["metadata"]["resourceVersion"]:
            raise Conflict(f"{ref} has changed meanwhile: read it again")
        _validated({name: value for name, value in changed.items() if name != "status"})
        if changed["metadata"]["name"] != ref.name:
            raise JobInvalid("metadata.name cannot be changed", [SpecError("is fixed", "metadata.name")])
        grown = changed["spec"] != state.resource["spec"]
        state.resource = changed
        changed["metadata"]["generation"] += int(grown)
        self._touch(state, {})
        return state.record

    async def delete(self, ref: JobRef) -> None:
        self._answer()
        self._state(ref)
        del self._jobs[ref]
        self._version += 1
        self._notify()

    async def scale(self, ref: JobRef, replicas: int, group: str = ROLLOUT) -> JobRecord:
        self._answer()
        state = self._state(ref)
        if group == ROLLOUT and not state.record.job.spec.samples:
            raise NotPossible(f"{ref} has no rollout workers: {state.record.algorithm} does not sample")
        job = state.record.job
        try:
            patch = replicas_patch(job, job.model_dump(by_alias=True, exclude_unset=True), group, replicas)
        except LookupError as error:
            raise NotPossible(f"{ref} {error}") from error
        record = await self.patch(ref, patch)
        if group == ROLLOUT:
            self.status(ref, rolloutReplicas=replicas)
        return record

    async def suspend(self, ref: JobRef, suspended: bool) -> JobRecord:
        self._answer()
        state = self._state(ref)
        if state.final:
            raise Conflict(f"{ref} is over: there is nothing to suspend or resume")
        await self.patch(ref, {"spec": {"suspend": suspended}})
        self.status(ref, phase="Suspended" if suspended else "Running")
        return state.record

    async def retry(self, ref: JobRef) -> JobRecord:
        self._answer()
        state = self._state(ref)
        if state.record.phase is not JobPhase.FAILED:
            raise Conflict(not_retryable_message(ref, state.record.phase))
        self.status(ref, phase="Starting")
        return state.record

    async def watch(self, ref: JobRef) -> AsyncIterator[JobRecord]:
        self._answer()
        seen = ""
        uid = self._state(ref).resource["metadata"]["uid"]
        with self._changes() as changed:
            while True:
                changed.clear()
                state = self._jobs.get(ref)
                if state is None or state.resource["metadata"]["uid"] != uid:
                    return
                version = state.resource["metadata"]["resourceVersion"]
                if version != seen:
                    seen = version
                    yield state.record
                else:
                    await changed.wait()

    async def processes(self, ref: JobRef) -> Sequence[ProcessRecord]:
        self._answer()
        state = self._state(ref)
        return [
            replace(process, says=state.heartbeats.get(process.name, process.says))
            for process in state.processes
        ]

    async def pods(self, ref: JobRef) -> Sequence[Mapping[str, Any]]:
        return ()

    async def logs(
        self,
        ref: JobRef,
        *,
        process: str | None = None,
        role: str | None = None,
        follow: bool = False,
        tail: int | None = None,
        previous: bool = False,
    ) -> AsyncIterator[LogLine]:
        self._answer()
        if previous:
            lines = [line for line in self._state(ref).previous_lines if process in (None, line.process)]
            if not lines:
                raise NotPossible(f"job {ref} has no log of a failed attempt")
            for line in lines:
                yield line
            return

        def is_selected(line: LogLine) -> bool:
            roles = {member.name: member.role for member in state.processes}
            return process in (None, line.process) and role in (None, roles.get(line.process, line.process))

        state = self._state(ref)
        shown = 0 if tail is None else len(state.lines)
        if tail is not None:
            chosen = [line for line in state.lines if is_selected(line)]
            last = {
                name: [line for line in chosen if line.process == name][max(0, count - tail) :]
                for name, count in Counter(line.process for line in chosen).items()
            }
            kept_ids = {id(line) for lines in last.values() for line in lines}
            for line in chosen:
                if id(line) in kept_ids:
                    yield line
        with self._changes() as changed:
            while True:
                changed.clear()
                while shown < len(state.lines):
                    shown += 1
                    if is_selected(state.lines[shown - 1]):
                        yield state.lines[shown - 1]
                if not follow or state.final or self._jobs.get(ref) is not state:
                    return
                await changed.wait()

    async def events(self, ref: JobRef) -> Sequence[JobEvent]:
        self._answer()
        return sorted(self._state(ref).events, key=lambda event: event.time)

    async def labels(self, ref: JobRef) -> Sequence[HumanLabel]:
        self._answer()
        return list(self._state(ref).labels)

    async def add_label(self, ref: JobRef, label: HumanLabel) -> None:
        self._answer()
        self._state(ref).labels.append(label)

    async def result(self, ref: JobRef, into: Path | None = None) -> Path:
        self._answer()
        state = self._state(ref)
        if state.result is None:
            raise NotPossible(f"{ref} has no result: it is {state.resource['status'].get('phase')}")
        return state.result

    async def metrics(
        self, ref: JobRef, after: str = STREAM_START, count: int = 1000
    ) -> Sequence[StepMetrics]:
        self._answer()
        return [m for m in self._state(ref).metrics if _order(m.entry) > _order(after)][:count]

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
        selected = [
            sample
            for sample in self._state(ref).samples
            if step in (None, sample.step) and _order(sample.entry) > _order(after)
        ]
        return selected[::-1][:count] if newest else selected[:count]

    async def validation_samples(self, ref: JobRef, step: int) -> Sequence[ValidationRecord]:
        self._answer()
        return self._state(ref).validations.get(step, [])

    async def heartbeats(self, ref: JobRef, processes: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        self._answer()
        latest = self._state(ref).heartbeats
        return {name: latest[name] for name in processes if name in latest}

    async def close(self) -> None:
        self.closed = True

    # Helpers.

    def _answer(self) -> None:
        if self.failing is not None:
            raise self.failing

    def _state(self, ref: JobRef) -> _JobState:
        if ref not in self._jobs:
            raise JobNotFound(f"there is no job {ref.name} in namespace {ref.namespace}")
        return self._jobs[ref]

    def _touch(self, state: _JobState, patch: Mapping[str, Any]) -> None:
        self._version += 1
        state.resource = apply_merge_patch(state.resource, patch)
        state.resource["metadata"]["resourceVersion"] = str(self._version)
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
