"""Reads runs as job records, from their files and their runners."""

import asyncio
import json
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kubealign.client.backends.local.index import RunIndex, StoredRun
from kubealign.client.backends.local.resource import RunnerProcesses, refine_phase, to_resource
from kubealign.client.errors import JobNotFound
from kubealign.client.query import select_page
from kubealign.client.records import JobPage, JobRecord, JobRef, ListQuery
from kubealign.local.errors import RunRefused
from kubealign.local.run_dir import control_socket
from kubealign.local.run_dir.phase import RunPhase
from kubealign.local.runner.admission import pending_dependencies
from kubealign.spec.base import JOB_NAME_PATTERN
from kubealign.spec.job import AlignmentJob
from kubealign.spec.status import JobPhase

_CONTROL_TIMEOUT_SECONDS = 2.0
#: Age in seconds up to which a runner's response is reused.
_MAX_AGE_SECONDS = 0.4


class RecordReader:
    """Reads files in threads, and queries runners over their control sockets."""

    def __init__(self, runs_dir: Path) -> None:
        self._runs_dir = runs_dir
        self._index = RunIndex(runs_dir)
        self._process_cache: dict[str, tuple[float, RunnerProcesses]] = {}
        self._versions: dict[str, tuple[int, int]] = {}

    async def read_run(self, ref: JobRef) -> StoredRun:
        """Return the run of a job. Raises JobNotFound."""
        # The name becomes a path, so only valid job names may be looked up.
        is_valid_name = re.fullmatch(JOB_NAME_PATTERN, ref.name) is not None
        stored = await asyncio.to_thread(self._index.get, ref.name) if is_valid_name else None
        if stored is None or stored.namespace != ref.namespace:
            elsewhere = f"; namespace {stored.namespace} has one" if stored is not None else ""
            raise JobNotFound(
                f"there is no job {ref.name} in namespace {ref.namespace} of {self._runs_dir}{elsewhere}"
            )
        return refine_phase(stored, await self.runner_processes(stored))

    async def read_record(self, ref: JobRef) -> JobRecord:
        """Return the record of a job. Raises JobNotFound."""
        stored = await self.read_run(ref)
        record = await asyncio.to_thread(self._build_record, stored, await self.runner_processes(stored))
        if record is None:
            raise JobNotFound(f"{ref} was deleted")
        return record

    async def list_page(self, query: ListQuery) -> JobPage:
        """Return one page of jobs. Raises JobInvalid for an invalid query."""
        runs = await asyncio.to_thread(self._index.list_runs)
        running = [stored for stored in runs if stored.run_phase.phase is JobPhase.RUNNING]
        processes_by_name = dict(
            zip(
                (s.name for s in running),
                await asyncio.gather(*map(self.runner_processes, running)),
                strict=True,
            )
        )

        def select_records() -> JobPage:
            jobs = (refine_phase(stored, processes_by_name.get(stored.name)) for stored in runs)
            page = select_page(jobs, query)
            records = [self._build_record(stored, processes_by_name.get(stored.name)) for stored in page.jobs]
            existing = [record for record in records if record is not None]
            return JobPage(existing, page.next, page.total, str(time.time_ns() // 1000))

        return await asyncio.to_thread(select_records)

    async def runner_processes(self, stored: StoredRun) -> RunnerProcesses:
        """Return the processes that the job's runner reports; None if no runner responds."""
        if stored.run_phase.phase not in (JobPhase.RUNNING, JobPhase.STARTING, JobPhase.SUSPENDING):
            return None
        requested_at, reported = self._process_cache.get(stored.uid, (-_MAX_AGE_SECONDS, None))
        if time.monotonic() - requested_at < _MAX_AGE_SECONDS:
            return reported
        try:
            async with asyncio.timeout(_CONTROL_TIMEOUT_SECONDS):
                reported = await control_socket.list_processes(stored.folder.root)
        except (RunRefused, OSError, TimeoutError):
            reported = None
        self._process_cache[stored.uid] = (time.monotonic(), reported)
        return reported

    def invalidate(self) -> None:
        """Invalidate all caches, so that a change through this backend is visible at once."""
        self._index.invalidate()
        self._process_cache.clear()

    def _build_record(self, stored: StoredRun, processes: RunnerProcesses) -> JobRecord | None:
        try:
            document: dict[str, Any] = json.loads(stored.folder.job.read_bytes())
        except (OSError, ValueError):
            return None
        if stored.run_phase.phase is JobPhase.PENDING:
            stored = replace(stored, run_phase=self._pending_phase(stored, document))
        job_resource = to_resource(stored, document, processes, stored.folder.read_prepared_rows())
        job_resource["metadata"]["resourceVersion"] = self._resource_version(stored, job_resource)
        return JobRecord(job_resource)

    def _pending_phase(self, stored: StoredRun, document: Mapping[str, Any]) -> RunPhase:
        try:
            dependencies = list(pending_dependencies(AlignmentJob.model_validate(document), self._runs_dir))
        except (RunRefused, ValueError) as error:
            # The runner will report the same error.
            return RunPhase(JobPhase.PENDING, str(error))
        if not dependencies:
            return stored.run_phase
        names = ", ".join(f"{name} ({phase})" for name, phase in dependencies)
        return RunPhase(JobPhase.PENDING, f"waits for the result of {names}")

    def _resource_version(self, stored: StoredRun, resource: Mapping[str, Any]) -> str:
        """Return a version that grows with each observed change, and with changes made by other writers."""
        digest = hash(json.dumps(resource, sort_keys=True))
        last_step_time = stored.last_step.time * 1e6 if stored.last_step is not None else 0.0
        version = max(stored.modified_ns // 1000, int(last_step_time))
        previous = self._versions.get(stored.uid)
        if previous is not None:
            version = previous[1] if previous[0] == digest else max(version, previous[1] + 1)
        self._versions[stored.uid] = (digest, version)
        return str(version)
