"""Backend of this machine: each job has a folder in runs/ and, while it runs, a runner of its own.

`kubealign run` uses the same folders, so its jobs are visible and controllable here too.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kubealign.client.backends.local import lifecycle
from kubealign.client.backends.local.labels import append_label, read_labels
from kubealign.client.backends.local.logs import log_files, stream_logs
from kubealign.client.backends.local.metrics import read_metrics, read_samples, read_validation
from kubealign.client.backends.local.patch import PatchPlan, plan_patch
from kubealign.client.backends.local.processes import idle_records, read_heartbeats, running_records
from kubealign.client.backends.local.record_reader import RecordReader
from kubealign.client.backends.local.submission import submit, validate_submission
from kubealign.client.backends.local.watch import JobWatcher
from kubealign.client.backends.replicas import replicas_patch
from kubealign.client.backends.worker_groups import ROLLOUT
from kubealign.client.errors import Conflict, JobNotFound, NotPossible
from kubealign.client.records import JobEvent, JobPage, JobRecord, JobRef, ListQuery, LogLine, ProcessRecord
from kubealign.client.retry import not_retryable_message
from kubealign.human_labels import HumanLabel
from kubealign.local.errors import RunRefused
from kubealign.local.run_dir import control_socket
from kubealign.local.run_dir.events import EventLog
from kubealign.local.run_dir.layout import RunDirectory
from kubealign.read_model import STREAM_START, SampleRecord, StepMetrics
from kubealign.spec.job import AlignmentJob
from kubealign.spec.status import JobPhase
from kubealign.validation_record import ValidationRecord

DEFAULT_NAMESPACE = "default"
_ACTIVE_PHASES = (JobPhase.STARTING, JobPhase.RUNNING)


class LocalBackend:
    """JobBackend over the folders of `runs_dir`.

    File paths in submitted documents are resolved against the present working directory.
    """

    kind = "local"
    namespace = DEFAULT_NAMESPACE

    def __init__(self, runs_dir: Path) -> None:
        self._runs_dir = runs_dir.absolute()
        self._reader = RecordReader(self._runs_dir)
        self._watches = JobWatcher(self._reader.read_record)

    async def create(self, resource: Mapping[str, Any], *, dry_run: bool = False) -> JobRecord:
        """Submit a job. It starts at once, or when the results that it depends on exist."""
        job = validate_submission(resource, Path.cwd())
        dry_run_record = await asyncio.to_thread(submit, job, self._runs_dir, dry_run=dry_run)
        if dry_run_record is not None:
            return dry_run_record
        self._reader.invalidate()
        return await self._reader.read_record(JobRef(job.metadata.namespace, job.name))

    async def get(self, ref: JobRef) -> JobRecord:
        return await self._reader.read_record(ref)

    async def list(self, query: ListQuery) -> JobPage:
        return await self._reader.list_page(query)

    async def patch(self, ref: JobRef, patch: Mapping[str, Any]) -> JobRecord:
        patch_plan = plan_patch(await self._reader.read_record(ref), patch, Path.cwd())
        for group, replicas in patch_plan.scaled.items():
            await self._scale_running(ref, group, replicas)
        await self._write_patch(ref, patch_plan)
        if patch_plan.suspended is not None:
            await self.suspend(ref, patch_plan.suspended)
        return await self._reread(ref)

    async def delete(self, ref: JobRef) -> None:
        stored = await self._reader.read_run(ref)
        await lifecycle.terminate_runner(ref, stored.folder)
        await asyncio.to_thread(_delete_run, ref, stored.folder)
        self._reader.invalidate()

    async def scale(self, ref: JobRef, replicas: int, group: str = ROLLOUT) -> JobRecord:
        record = await self._reader.read_record(ref)
        if group == ROLLOUT:
            if not record.job.spec.samples:
                raise NotPossible(f"{ref} has no rollout workers: {record.algorithm} does not sample")
            return await self.patch(ref, {"spec": {"rollout": {"replicas": replicas}}})
        try:
            patch = replicas_patch(record.job, record.resource, group, replicas)
        except LookupError as error:
            raise NotPossible(f"{ref} {error}") from None
        return await self.patch(ref, patch)

    async def suspend(self, ref: JobRef, suspended: bool) -> JobRecord:
        stored = await self._reader.read_run(ref)
        phase = stored.run_phase.phase
        if phase.is_final:
            raise Conflict(f"{ref} has finished ({phase}): there is nothing to suspend or resume")
        is_suspended = phase in (JobPhase.SUSPENDING, JobPhase.SUSPENDED)
        if suspended and (not is_suspended or stored.facts.stop_requested_pid is None):
            await lifecycle.request_stop(ref, stored.folder, stored.facts.stop_requested_pid)
        elif not suspended and is_suspended:
            await self._start(ref)
        return await self._reread(ref)

    async def retry(self, ref: JobRef) -> JobRecord:
        stored = await self._reader.read_run(ref)
        if stored.run_phase.phase is not JobPhase.FAILED:
            raise Conflict(not_retryable_message(ref, stored.run_phase.phase))
        await self._start(ref)
        return await self._reread(ref)

    def watch(self, ref: JobRef) -> AsyncIterator[JobRecord]:
        return self._watches.watch(ref)

    async def pods(self, ref: JobRef) -> Sequence[Mapping[str, Any]]:
        return ()

    async def processes(self, ref: JobRef) -> Sequence[ProcessRecord]:
        stored = await self._reader.read_run(ref)
        reported = await self._reader.runner_processes(stored)
        if reported is None:
            return idle_records((await self._reader.read_record(ref)).job, stored.run_phase.phase)
        names = [process["name"] for process in reported]
        return running_records(reported, await read_heartbeats(stored.folder, names))

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
        if previous:
            raise NotPossible(
                f"{ref} runs on this machine, where the log of a process holds all its attempts: read it "
                "without --previous"
            )
        logs = (await self._reader.read_run(ref)).folder.logs
        if not follow and not await asyncio.to_thread(log_files, logs, process, role):
            names = ", ".join(path.stem for path in await asyncio.to_thread(log_files, logs, None, None))
            requested = process or role or "anything"
            raise NotPossible(f"{ref} has no log of {requested}: there are {names or 'none yet'}")

        async def going_on() -> bool:
            return follow and not await self._is_finished(ref)

        async for line in stream_logs(logs, process, role, tail, going_on):
            yield line

    async def events(self, ref: JobRef) -> Sequence[JobEvent]:
        folder = (await self._reader.read_run(ref)).folder
        events = await asyncio.to_thread(EventLog(folder.events).read)
        return [JobEvent(event.timestamp, str(event.type), event.reason, event.message) for event in events]

    async def labels(self, ref: JobRef) -> Sequence[HumanLabel]:
        folder = (await self._reader.read_run(ref)).folder
        return await asyncio.to_thread(read_labels, folder.labels)

    async def add_label(self, ref: JobRef, label: HumanLabel) -> None:
        folder = (await self._reader.read_run(ref)).folder
        await asyncio.to_thread(append_label, folder.labels, label)

    async def result(self, ref: JobRef, into: Path | None = None) -> Path:
        """Return the result folder. Nothing is downloaded, so `into` is ignored."""
        stored = await self._reader.read_run(ref)
        if stored.run_phase.phase is not JobPhase.SUCCEEDED:
            reason = f": {stored.run_phase.message}" if stored.run_phase.message else ""
            raise NotPossible(f"{ref} has no result, it is {stored.run_phase.phase}{reason}")
        return stored.folder.result

    async def metrics(
        self, ref: JobRef, after: str = STREAM_START, count: int = 1000
    ) -> Sequence[StepMetrics]:
        folder = (await self._reader.read_run(ref)).folder
        return await asyncio.to_thread(read_metrics, folder.metrics, after, count)

    async def samples(
        self,
        ref: JobRef,
        after: str = STREAM_START,
        count: int = 100,
        *,
        step: int | None = None,
        newest: bool = False,
    ) -> Sequence[SampleRecord]:
        folder = (await self._reader.read_run(ref)).folder
        return await asyncio.to_thread(read_samples, folder.samples, after, count, step=step, newest=newest)

    async def validation_samples(self, ref: JobRef, step: int) -> Sequence[ValidationRecord]:
        folder = (await self._reader.read_run(ref)).folder
        return await asyncio.to_thread(read_validation, folder.validation, step)

    async def heartbeats(self, ref: JobRef, processes: Sequence[str]) -> Mapping[str, Mapping[str, Any]]:
        stored = await self._reader.read_run(ref)
        if stored.run_phase.phase not in (*_ACTIVE_PHASES, JobPhase.SUSPENDING):
            return {}
        return await read_heartbeats(stored.folder, processes)

    async def close(self) -> None:
        """Stop all watches. Jobs continue to run."""
        await self._watches.close()

    async def _start(self, ref: JobRef) -> None:
        folder = (await self._reader.read_run(ref)).folder
        grace = (await self._reader.read_record(ref)).job.spec.lifecycle.grace_period_seconds
        await lifecycle.start_runner(ref, folder, grace)

    async def _is_finished(self, ref: JobRef) -> bool:
        try:
            return (await self._reader.read_run(ref)).run_phase.phase.is_final
        except JobNotFound:
            return True

    async def _scale_running(self, ref: JobRef, group: str, replicas: int) -> None:
        """Scale a running job; without a runner, the number in the document suffices."""
        stored = await self._reader.read_run(ref)
        if stored.run_phase.phase not in _ACTIVE_PHASES:
            return
        try:
            await control_socket.scale(stored.folder.root, replicas, group)
        except RunRefused as refusal:
            raise Conflict(f"{ref} cannot be scaled now: {refusal}") from None

    async def _write_patch(self, ref: JobRef, patch_plan: PatchPlan) -> None:
        folder = (await self._reader.read_run(ref)).folder
        await asyncio.to_thread(_write_job, folder, patch_plan.job)

    async def _reread(self, ref: JobRef) -> JobRecord:
        self._reader.invalidate()
        return await self._reader.read_record(ref)


def _write_job(folder: RunDirectory, job: AlignmentJob) -> None:
    spec = job.spec.model_copy(update={"suspend": False})
    folder.write_job(job.model_copy(update={"spec": spec}).model_dump_json(by_alias=True, indent=2))
    folder.increment_generation()


def _delete_run(ref: JobRef, folder: RunDirectory) -> None:
    lock = folder.lock()
    try:
        lock.acquire()
    except RunRefused as refusal:
        raise Conflict(f"{ref} was started again in the meantime: {refusal}") from None
    try:
        folder.delete()
    finally:
        lock.release()
