"""Polls each watched job once for all of its watchers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from kubealign.client.errors import JobNotFound, KubealignError
from kubealign.client.records import JobRecord, JobRef

_POLL_SECONDS = 0.5

#: Reads a job. Raises JobNotFound.
ReadJob = Callable[[JobRef], Awaitable[JobRecord]]


@dataclass
class _WatchedJob:
    """Watched job as of the last poll. `end_reason` is set when no further change will follow."""

    record: JobRecord
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    watchers: int = 0
    end_reason: KubealignError | None = None
    task: asyncio.Task[None] | None = None


class JobWatcher:
    """Watches jobs by polling, because file changes trigger no event.

    Each watched job is read twice a second by one task, which starts with the first watcher and ends with
    the last.
    """

    def __init__(self, read_job: ReadJob) -> None:
        self._read_job = read_job
        self._watched_jobs: dict[JobRef, _WatchedJob] = {}

    async def watch(self, ref: JobRef) -> AsyncIterator[JobRecord]:
        """Yield the job as it is now, then after each change. Ends when the job is deleted.

        Raises JobNotFound if the job never existed.
        """
        record = await self._read_job(ref)
        yield record
        watched = self._join(ref, record)
        seen = record.resource
        try:
            while True:
                async with watched.changed:
                    while watched.record.resource == seen and watched.end_reason is None:
                        await watched.changed.wait()
                if watched.end_reason is not None:
                    if isinstance(watched.end_reason, JobNotFound):
                        return
                    raise watched.end_reason
                seen = watched.record.resource
                yield watched.record
        finally:
            self._leave(ref, watched)

    async def close(self) -> None:
        """Stop all polling; the remaining watchers end."""
        tasks = [watched.task for watched in self._watched_jobs.values() if watched.task is not None]
        for watched in list(self._watched_jobs.values()):
            await _notify(watched, end_reason=JobNotFound("the client was closed"))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _join(self, ref: JobRef, record: JobRecord) -> _WatchedJob:
        watched = self._watched_jobs.get(ref)
        if watched is None or watched.end_reason is not None or watched.record.uid != record.uid:
            watched = _WatchedJob(record)
            self._watched_jobs[ref] = watched
            watched.task = asyncio.get_running_loop().create_task(self._poll(ref, watched))
        watched.watchers += 1
        return watched

    def _leave(self, ref: JobRef, watched: _WatchedJob) -> None:
        watched.watchers -= 1
        if watched.watchers == 0:
            if watched.task is not None:
                watched.task.cancel()
            if self._watched_jobs.get(ref) is watched:
                del self._watched_jobs[ref]

    async def _poll(self, ref: JobRef, watched: _WatchedJob) -> None:
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            try:
                record = await self._read_job(ref)
            except KubealignError as error:
                await _notify(watched, end_reason=error)
                return
            if record.uid != watched.record.uid:
                await _notify(watched, end_reason=JobNotFound(f"{ref} was deleted"))
                return
            if record.resource != watched.record.resource:
                await _notify(watched, record=record)


async def _notify(
    watched: _WatchedJob, *, record: JobRecord | None = None, end_reason: KubealignError | None = None
) -> None:
    async with watched.changed:
        if record is not None:
            watched.record = record
        watched.end_reason = watched.end_reason or end_reason
        watched.changed.notify_all()
