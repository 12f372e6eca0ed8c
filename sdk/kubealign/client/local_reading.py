"""Reads runs as job records, from their files and their runners."""

import asyncio
import json
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kubealign.client.errors import JobNotFound
from kubealign.client.local_index import RunIndex, Stored
from kubealign.client.local_resource import Processes, refined, resource
from kubealign.client.query import select
from kubealign.client.records import JobPage, JobRecord, JobRef, ListQuery
from kubealign.local import control
from kubealign.local.awaiting import awaited
from kubealign.local.failure import RunRefused
from kubealign.local.standing import Standing
from kubealign.spec.base import JOB_NAME
from kubealign.spec.job import AlignmentJob
from kubealign.spec.status import JobPhase

_ANSWER_SECONDS = 2.0
#: Age in seconds up to which a runner's response is reused.
_FRESH_SECONDS = 0.4


class RunReader:
    """Reads files in threads, and queries runners over their control sockets."""

    def __init__(self, runs_dir: Path) -> None:
        self._runs_dir = runs_dir
        self._index = RunIndex(runs_dir)
        self._told: dict[str, tuple[float, Processes]] = {}
        self._versions: dict[str, tuple[int, int]] = {}

    async def stored(self, ref: JobRef) -> Stored:
        """Return the run of a job. Raises JobNotFound."""
        # The name becomes a path, so only valid job names may be looked up.
        is_valid_name = re.fullmatch(JOB_NAME, ref.name) is not None
        stored = await asyncio.to_thread(self._index.one, ref.name) if is_valid_name else None
        if stored is None or stored.namespace != ref.namespace:
            elsewhere = f"; namespace {stored.namespace} has one" if stored is not None else ""
            raise JobNotFound(
                f"there is no job {ref.name} in namespace {ref.namespace} of {self._runs_dir}{elsewhere}"
            )
        return refined(stored, await self.processes(stored))

    async def record(self, ref: JobRef) -> JobRecord:
        """Return the record of a job. Raises JobNotFound."""
        stored = await self.stored(ref)
        record = await asyncio.to_thread(self._record, stored, await self.processes(stored))
        if record is None:
            raise JobNotFound(f"{ref} was deleted")
        return record

    async def page(self, query: ListQuery) -> JobPage:
        """Return one page of jobs. Raises JobInvalid for an invalid query."""
        runs = await asyncio.to_thread(self._index.all)
        running = [stored for stored in runs if stored.stands.phase is JobPhase.RUNNING]
        processes_by_name = dict(
            zip((s.name for s in running), await asyncio.gather(*map(self.processes, running)), strict=True)
        )

        def select_records() -> JobPage:
            jobs = (refined(stored, processes_by_name.get(stored.name)) for stored in runs)
            page = select(jobs, query)
            records = [self._record(stored, processes_by_name.get(stored.name)) for stored in page.jobs]
            existing = [record for record in records if record is not None]
            return JobPage(existing, page.next, page.total, str(time.time_ns() // 1000))

        return await asyncio.to_thread(select_records)

    async def processes(self, stored: Stored) -> Processes:
        """Return the processes that the job's runner reports; None if no runner responds."""
        if stored.stands.phase not in (JobPhase.RUNNING, JobPhase.STARTING, JobPhase.SUSPENDING):
            return None
        requested_at, reported = self._told.get(stored.uid, (-_FRESH_SECONDS, None))
        if time.monotonic() - requested_at < _FRESH_SECONDS:
            return reported
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                reported = await control.processes(stored.folder.root)
        except (RunRefused, OSError, TimeoutError):
            reported = None
        self._told[stored.uid] = (time.monotonic(), reported)
        return reported

    def forget(self) -> None:
        """Invalidate all caches, so that a change through this backend is visible at once."""
        self._index.forget()
        self._told.clear()

    def _record(self, stored: Stored, processes: Processes) -> JobRecord | None:
        try:
            document: dict[str, Any] = json.loads(stored.folder.job.read_bytes())
        except (OSError, ValueError):
            return None
        if stored.stands.phase is JobPhase.PENDING:
            stored = replace(stored, stands=self._pending(stored, document))
        job_resource = resource(stored, document, processes)
        job_resource["metadata"]["resourceVersion"] = self._version(stored, job_resource)
        return JobRecord(job_resource)

    def _pending(self, stored: Stored, document: Mapping[str, Any]) -> Standing:
        try:
            dependencies = list(awaited(AlignmentJob.model_validate(document), self._runs_dir))
        except (RunRefused, ValueError) as error:
            # The runner will report the same error.
            return Standing(JobPhase.PENDING, str(error))
        if not dependencies:
            return stored.stands
        names = ", ".join(f"{name} ({phase})" for name, phase in dependencies)
        return Standing(JobPhase.PENDING, f"waits for the result of {names}")

    def _version(self, stored: Stored, told: Mapping[str, Any]) -> str:
        """Return a version that grows with each observed change, and with changes made by other writers."""
        text = hash(json.dumps(told, sort_keys=True))
        last_step_time = stored.newest.time * 1e6 if stored.newest is not None else 0.0
        version = max(stored.changed // 1000, int(last_step_time))
        previous = self._versions.get(stored.uid)
        if previous is not None:
            version = previous[1] if previous[0] == text else max(version, previous[1] + 1)
        self._versions[stored.uid] = (text, version)
        return str(version)
