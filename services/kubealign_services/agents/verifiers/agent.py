"""Agent that runs rollouts of an environment of verifiers."""

import asyncio
import itertools
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from kubealign.agents.contract import AgentClient, AgentRow
from kubealign.spec.workflows.agents import VerifiersEnvironment
from kubealign_services.agents.verifiers.environment import EnvironmentConfig, load_config
from kubealign_services.agents.verifiers.results import read_result
from kubealign_services.agents.verifiers.tasks import TaskTable
from kubealign_services.environments.contract import EnvironmentFailed
from kubealign_services.scoring.functions.child_main import describe_error

#: Rollouts after which an environment is replaced: it keeps an HTTP client for each API key until its end.
_MAX_ROLLOUTS = 256
#: Prefix of the variables that hold the sessions' keys. The package passes no variable with API_KEY in its
#: name on to the programs that it starts.
_KEY_VARIABLE = "KUBEALIGN_POLICY_API_KEY"


@dataclass
class _ServedEnvironment:
    """An environment with its tool servers and its proxy of the model.

    rollouts: number of those that began. running: number of those that have not ended.
    """

    environment: Any
    stack: AsyncExitStack
    rollouts: int = 0
    running: int = 0


class VerifiersAgent:
    """Agent whose rollouts an environment of verifiers runs. `solve` may run many times at once."""

    def __init__(self, config: EnvironmentConfig) -> None:
        self._config, self._tasks = config, TaskTable(config.load_taskset())
        self._served: _ServedEnvironment | None = None
        self._opening = asyncio.Lock()
        self._keys = itertools.count(1)

    @classmethod
    async def open(cls, spec: VerifiersEnvironment) -> "VerifiersAgent":
        """Load an environment, its first task, and its shared tool servers.

        Raises EnvironmentFailed, permanent.
        """
        config = load_config(spec)
        try:
            agent = cls(config)
            if agent._tasks.get(0) is None:
                raise EnvironmentFailed("has no tasks", permanent=True)
            agent._served = await agent._open_environment()
            return agent
        except EnvironmentFailed:
            raise
        # Creating an environment runs code of another package, which may raise anything.
        except (Exception, SystemExit) as error:
            raise EnvironmentFailed(f"cannot be created: {describe_error(error)}", permanent=True) from error

    async def solve(self, client: AgentClient, row: AgentRow) -> float | dict[str, Any] | None:
        """Run the rollout of the row's task with the policy as the model, and return `RewardResult.to_json`.

        Raises:
            EnvironmentFailed: The row names no task, or the rollout or its scoring failed.
        """
        task = self._tasks.find(row.columns)
        variable = f"{_KEY_VARIABLE}_{next(self._keys)}"
        os.environ[variable] = client.api_key
        package = self._config.package
        endpoint = package.EvalClientConfig(base_url=client.base_url, api_key_var=variable)
        try:
            async with self._serve() as environment:
                (slot,) = environment.slots(task)
                episode = await environment.run_slot(slot, package.ModelContext(client.model, endpoint))
        finally:
            del os.environ[variable]
        return read_result(episode, self._config.policy).to_json()

    async def close(self) -> None:
        """Stop the environment's servers."""
        served, self._served = self._served, None
        if served is not None:
            await served.stack.aclose()

    @asynccontextmanager
    async def _serve(self) -> AsyncIterator[Any]:
        """Yield an environment that is served; replace it after its last rollout."""
        served = await self._join()
        try:
            yield served.environment
        finally:
            served.running -= 1
            if served is not self._served and not served.running:
                await served.stack.aclose()

    async def _join(self) -> _ServedEnvironment:
        """Return the environment for another rollout, and count the rollout."""
        async with self._opening:
            served = self._served
            if served is None or served.rollouts >= _MAX_ROLLOUTS:
                previous, served = served, await self._open_environment()
                self._served = served
                if previous is not None and not previous.running:
                    await previous.stack.aclose()
            served.rollouts += 1
            served.running += 1
            return served

    async def _open_environment(self) -> _ServedEnvironment:
        environment = self._config.load()
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(environment.serving())
            return _ServedEnvironment(environment, stack.pop_all())
