"""Runs as records: what their files say, and their runners."""

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
#: What a runner has said is good enough for another caller for so long.
_FRESH_SECONDS = 0.4


class RunReader:
    """Reads in threads; asks runners over their sockets."""

    def __init__(self, runs_dir: Path) -> None:
        self._runs_dir = runs_dir
        self._index = RunIndex(runs_dir)
        self._told: dict[str, tuple[float, Processes]] = {}
        self._versions: dict[str, tuple[int, int]] = {}

    async def stored(self, ref: JobRef) -> Stored:
        """Raises JobNotFound."""
        # A name is a folder's: nothing else may be looked at.
        named = re.fullmatch(JOB_NAME, ref.name) is not None
        stored = await asyncio.to_thread(self._index.one, ref.name) if named else None
        if stored is None or stored.namespace != ref.namespace:
            elsewhere = f"; namespace {stored.namespace} has one" if stored is not None else ""
            raise JobNotFound(
                f"there is no job {ref.name} in namespace {ref.namespace} of {self._runs_dir}{elsewhere}"
            )
        return refined(stored, await self.processes(stored))

    async def record(self, ref: JobRef) -> JobRecord:
        """Raises JobNotFound."""
        stored = await self.stored(ref)
        record = await asyncio.to_thread(self._record, stored, await self.processes(stored))
        if record is None:
            raise JobNotFound(f"{ref} was deleted")
        return record

    async def page(self, query: ListQuery) -> JobPage:
        """Raises JobInvalid for a query that cannot be met."""
        everything = await asyncio.to_thread(self._index.all)
        busy = [stored for stored in everything if stored.stands.phase is JobPhase.RUNNING]
        told = dict(
            zip((s.name for s in busy), await asyncio.gather(*map(self.processes, busy)), strict=True)
        )

        def chosen() -> JobPage:
            jobs = (refined(stored, told.get(stored.name)) for stored in everything)
            page = select(jobs, query)
            records = [self._record(stored, told.get(stored.name)) for stored in page.jobs]
            there = [record for record in records if record is not None]
            return JobPage(there, page.next, page.total, str(time.time_ns() // 1000))

        return await asyncio.to_thread(chosen)

    async def processes(self, stored: Stored) -> Processes:
        """What the job's runner says it has; None where none answers."""
        if stored.stands.phase not in (JobPhase.RUNNING, JobPhase.STARTING, JobPhase.SUSPENDING):
            return None
        asked, told = self._told.get(stored.uid, (-_FRESH_SECONDS, None))
        if time.monotonic() - asked < _FRESH_SECONDS:
            return told
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                told = await control.processes(stored.folder.root)
        except (RunRefused, OSError, TimeoutError):
            told = None
        self._told[stored.uid] = (time.monotonic(), told)
        return told

    def forget(self) -> None:
        """Something was changed through this site: it is to be seen at once."""
        self._index.forget()
        self._told.clear()

    def _record(self, stored: Stored, processes: Processes) -> JobRecord | None:
        try:
            document: dict[str, Any] = json.loads(stored.folder.job.read_bytes())
        except (OSError, ValueError):
            return None
        if stored.stands.phase is JobPhase.PENDING:
            stored = replace(stored, stands=self._pending(stored, document))
        told = resource(stored, document, processes)
        told["metadata"]["resourceVersion"] = self._version(stored, told)
        return JobRecord(told)

    def _pending(self, stored: Stored, document: Mapping[str, Any]) -> Standing:
        try:
            waits_for = list(awaited(AlignmentJob.model_validate(document), self._runs_dir))
        except (RunRefused, ValueError) as error:
            # Its runner is about to find out too.
            return Standing(JobPhase.PENDING, str(error))
        if not waits_for:
            return stored.stands
        names = ", ".join(f"{name} ({phase})" for name, phase in waits_for)
        return Standing(JobPhase.PENDING, f"waits for the result of {names}")

    def _version(self, stored: Stored, told: Mapping[str, Any]) -> str:
        """Grows with each change that this reader sees, and with what was written since another's."""
        text = hash(json.dumps(told, sort_keys=True))
        newest = stored.newest.time * 1e6 if stored.newest is not None else 0.0
        version = max(stored.changed // 1000, int(newest))
        held = self._versions.get(stored.uid)
        if held is not None:
            version = held[1] if held[0] == text else max(version, held[1] + 1)
        self._versions[stored.uid] = (text, version)
        return str(version)
