"""Polls each watched job once for all of its watchers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from kubealign.client.errors import JobNotFound, KubealignError
from kubealign.client.records import JobRecord, JobRef

_LOOK_SECONDS = 0.5

#: Reads a job. Raises JobNotFound.
Look = Callable[[JobRef], Awaitable[JobRecord]]


@dataclass
class _Watched:
    """Watched job as of the last poll. `end_reason` is set when no further change will follow."""

    record: JobRecord
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    watchers: int = 0
    over: KubealignError | None = None
    task: asyncio.Task[None] | None = None


class Watches:
    """Watches jobs by polling, because file changes trigger no event.

    Each watched job is read twice a second by one task, which starts with the first watcher and ends with
    the last.
    """

    def __init__(self, look: Look) -> None:
        self._look = look
        self._watched: dict[JobRef, _Watched] = {}

    async def watch(self, ref: JobRef) -> AsyncIterator[JobRecord]:
        """Yield the job as it is now, then after each change. Ends when the job is deleted.

        Raises JobNotFound if the job never existed.
        """
        record = await self._look(ref)
        yield record
        watched = self._join(ref, record)
        seen = record.resource
        try:
            while True:
                async with watched.changed:
                    while watched.record.resource == seen and watched.over is None:
                        await watched.changed.wait()
                if watched.over is not None:
                    if isinstance(watched.over, JobNotFound):
                        return
                    raise watched.over
                seen = watched.record.resource
                yield watched.record
        finally:
            self._leave(ref, watched)

    async def close(self) -> None:
        """Stop all polling; the remaining watchers end."""
        tasks = [watched.task for watched in self._watched.values() if watched.task is not None]
        for watched in list(self._watched.values()):
            await _tell(watched, over=JobNotFound("the client was closed"))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _join(self, ref: JobRef, record: JobRecord) -> _Watched:
        watched = self._watched.get(ref)
        if watched is None or watched.over is not None or watched.record.uid != record.uid:
            watched = _Watched(record)
            self._watched[ref] = watched
            watched.task = asyncio.get_running_loop().create_task(self._keep_looking(ref, watched))
        watched.watchers += 1
        return watched

    def _leave(self, ref: JobRef, watched: _Watched) -> None:
        watched.watchers -= 1
        if watched.watchers == 0:
            if watched.task is not None:
                watched.task.cancel()
            if self._watched.get(ref) is watched:
                del self._watched[ref]

    async def _keep_looking(self, ref: JobRef, watched: _Watched) -> None:
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                record = await self._look(ref)
            except KubealignError as error:
                await _tell(watched, over=error)
                return
            if record.uid != watched.record.uid:
                await _tell(watched, over=JobNotFound(f"{ref} was deleted"))
                return
            if record.resource != watched.record.resource:
                await _tell(watched, record=record)


async def _tell(
    watched: _Watched, *, record: JobRecord | None = None, over: KubealignError | None = None
) -> None:
    async with watched.changed:
        if record is not None:
            watched.record = record
        watched.over = watched.over or over
        watched.changed.notify_all()
