"""Processes of a rollout worker that run code of users, each with several sessions at a time."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

from kubealign_services.environments.contract import EnvironmentFailed
from kubealign_services.environments.environment_process import EnvironmentProcess


class ChildProcesses:
    """Keeps a number of processes, and assigns each session to the one that has the fewest.

    Use as an async context manager. Processes that are lost or retired are replaced when the next session
    begins.

    Args:
        start: Starts a process. Raises EnvironmentFailed.
        concurrency: Most sessions of each process at a time; others wait.
        description: Noun of the processes for errors.
    """

    def __init__(
        self,
        start: Callable[[], Awaitable[EnvironmentProcess]],
        count: int,
        concurrency: int,
        description: str,
    ) -> None:
        self._start, self._count, self._description = start, count, description
        self._processes: list[EnvironmentProcess] = []
        self._capacity = asyncio.Semaphore(count * concurrency)
        self._starting = asyncio.Lock()

    @property
    def processes(self) -> tuple[EnvironmentProcess, ...]:
        """The processes, also those that are retired."""
        return tuple(self._processes)

    async def __aenter__(self) -> Self:
        """Start the processes. Raises EnvironmentFailed where one cannot be started."""
        await self._start_missing()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.gather(*(process.close() for process in self._processes))

    @asynccontextmanager
    async def reserve(self) -> AsyncIterator[EnvironmentProcess]:
        """Wait for a free session, and yield its process. A retired one is closed after its last session.

        Raises EnvironmentFailed.
        """
        async with self._capacity:
            process = await self._choose()
            process.sessions += 1
            try:
                yield process
            finally:
                process.sessions -= 1
                if not process.sessions and not process.is_usable:
                    await process.close()

    async def _choose(self) -> EnvironmentProcess:
        await self._start_missing()
        usable = [process for process in self._processes if process.is_usable]
        if not usable:
            raise EnvironmentFailed(f"{self._description} ended as soon as they were started")
        return min(usable, key=lambda process: process.sessions)

    async def _start_missing(self) -> None:
        """Start processes until their number is usable, and close those that are no longer needed."""
        async with self._starting:
            ended = [process for process in self._processes if not process.is_usable and not process.sessions]
            for process in ended:
                await process.close()
                self._processes.remove(process)
            missing = self._count - sum(process.is_usable for process in self._processes)
            if missing > 0:
                self._processes += await asyncio.gather(*(self._start() for _ in range(missing)))
