"""Pool of processes that run the environments of a rollout worker."""

import itertools
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from kubealign.spec.workflows.environments import EnvironmentSpec
from kubealign_services.environments.child_processes import ChildProcesses
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


class EnvironmentPool(ChildProcesses):
    """Opens the sessions of episodes, each in the process with the fewest.

    Use as an async context manager. Processes that are lost or retired are replaced when the next session is
    opened.
    """

    def __init__(self, spec: EnvironmentSpec) -> None:
        super().__init__(
            lambda: EnvironmentProcess.start(spec),
            spec.processes,
            spec.concurrency,
            "the environments' processes",
        )
        self._spec = spec
        self._identities = itertools.count(1)

    @asynccontextmanager
    async def open(self, seed: int, columns: Mapping[str, Any]) -> AsyncIterator[EnvironmentSession]:
        """Open a session, once fewer than processes * concurrency are open, and close it after the block.

        Raises EnvironmentFailed.
        """
        async with self.reserve() as process:
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

    async def _close_session(self, process: EnvironmentProcess, identity: int) -> None:
        """Close the environment; its errors cannot concern the episode any more and are logged."""
        try:
            if process.is_usable:
                await process.call("close", _CLOSE_SECONDS, "a fixed limit", identity)
        except EnvironmentFailed as error:
            log.warning("an environment was not closed", extra={"cause": str(error)})
