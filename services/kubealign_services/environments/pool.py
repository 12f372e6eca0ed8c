"""Pool of processes that run the environments of a rollout worker."""

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

from kubealign.spec.workflows.environments import EnvironmentSpec
from kubealign_services.environments.contract import (
    EnvironmentFailed,
    Observation,
    StepResult,
    observation_from_json,
    result_from_json,
)
from kubealign_services.environments.environment_process import EnvironmentProcess

log = logging.getLogger(__name__)

#: Time limit of the end of an episode in seconds; nothing depends on it.
_CLOSE_SECONDS = 10.0


class EnvironmentSession:
    """Environment of one episode. `observation`: the first one."""

    def __init__(
        self, process: EnvironmentProcess, spec: EnvironmentSpec, identity: int, observation: Observation
    ) -> None:
        self._process, self._spec, self._identity = process, spec, identity
        self.observation = observation

    async def step(self, action: str) -> StepResult:
        """Apply an action. Raises EnvironmentFailed."""
        result = await self._process.call(
            "step", self._spec.step_timeout_seconds, "stepTimeoutSeconds", self._identity, action=action
        )
        return result_from_json(result)


class EnvironmentPool:
    """Opens the sessions of episodes, each in the process with the fewest.

    Use as an async context manager. Processes that are lost or retired are replaced when the next session is
    opened.
    """

    def __init__(self, spec: EnvironmentSpec) -> None:
        self._spec = spec
        self._processes: list[EnvironmentProcess] = []
        self._capacity = asyncio.Semaphore(spec.processes * spec.concurrency)
        self._starting = asyncio.Lock()
        self._identities = itertools.count(1)

    @property
    def processes(self) -> tuple[EnvironmentProcess, ...]:
        """The processes, also those that are retired."""
        return tuple(self._processes)

    async def __aenter__(self) -> Self:
        """Start the processes. Raises EnvironmentFailed where the environment cannot be created."""
        await self._start_missing()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.gather(*(process.close() for process in self._processes))

    @asynccontextmanager
    async def open(self, seed: int, columns: Mapping[str, Any]) -> AsyncIterator[EnvironmentSession]:
        """Open a session, once fewer than processes * concurrency are open, and close it after the block.

        Raises EnvironmentFailed.
        """
        async with self._capacity:
            process = await self._choose_process()
            process.sessions += 1
            identity = next(self._identities)
            try:
                first = await process.call(
                    "open",
                    self._spec.reset_timeout_seconds,
                    "resetTimeoutSeconds",
                    identity,
                    seed=seed,
                    columns=dict(columns),
                )
                yield EnvironmentSession(process, self._spec, identity, observation_from_json(first))
            finally:
                await self._close_session(process, identity)

    async def _choose_process(self) -> EnvironmentProcess:
        await self._start_missing()
        usable = [process for process in self._processes if process.is_usable]
        if not usable:
            raise EnvironmentFailed("the environments' processes ended as soon as they were started")
        return min(usable, key=lambda process: process.sessions)

    async def _start_missing(self) -> None:
        """Start processes until the spec's number is usable, and close those that are no longer needed."""
        async with self._starting:
            ended = [process for process in self._processes if not process.is_usable and not process.sessions]
            for process in ended:
                await process.close()
                self._processes.remove(process)
            missing = self._spec.processes - sum(process.is_usable for process in self._processes)
            if missing > 0:
                starts = (EnvironmentProcess.start(self._spec) for _ in range(missing))
                self._processes += await asyncio.gather(*starts)

    async def _close_session(self, process: EnvironmentProcess, identity: int) -> None:
        """Close the environment; its errors cannot concern the episode any more and are logged."""
        try:
            if process.is_usable:
                await process.call("close", _CLOSE_SECONDS, "a fixed limit", identity)
        except EnvironmentFailed as error:
            log.warning("an environment was not closed", extra={"cause": str(error)})
        finally:
            process.sessions -= 1
            if not process.sessions and not process.is_usable:
                await process.close()
