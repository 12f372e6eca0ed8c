"""Pool of processes that run the agents of a rollout worker."""

import itertools
from dataclasses import asdict
from types import TracebackType
from typing import Self

from kubealign.spec.workflows.agents import AgentSpec
from kubealign_services.agents.contract import AgentClient, AgentRow
from kubealign_services.environments.child_processes import ChildProcesses
from kubealign_services.environments.environment_process import EnvironmentProcess
from kubealign_services.scoring.functions.function_process import function_target
from kubealign_services.scoring.functions.results import RewardResult

_MODULE = "kubealign_services.agents.child_main"


class AgentPool:
    """Runs agents, each in the process with the fewest.

    Use as an async context manager. Processes that are lost, or in which an agent exceeded its time limit,
    are replaced when the next agent begins.
    """

    def __init__(self, spec: AgentSpec) -> None:
        target, description = function_target(spec.function)
        #: Description of the agent for errors.
        self.label = f"agent {description}"
        self._timeout = spec.timeout_seconds
        self._children = ChildProcesses(
            lambda: EnvironmentProcess.start_program(_MODULE, self.label, target),
            spec.processes,
            spec.concurrency,
            "the agents' processes",
        )
        self._identities = itertools.count(1)

    @property
    def processes(self) -> tuple[EnvironmentProcess, ...]:
        """The processes, also those that are retired."""
        return self._children.processes

    async def __aenter__(self) -> Self:
        """Start the processes. Raises EnvironmentFailed where the agent cannot be imported."""
        await self._children.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._children.__aexit__(kind, error, trace)

    async def solve(self, client: AgentClient, row: AgentRow) -> RewardResult:
        """Run an agent once fewer than processes * concurrency run, and return its reward.

        Raises:
            EnvironmentFailed: The agent raised an error, returned no reward, exceeded timeoutSeconds or lost
                its process.
        """
        async with self._children.reserve() as process:
            value = await process.call(
                "solve",
                self._timeout,
                "rollout.workflow.agent.timeoutSeconds",
                next(self._identities),
                client=asdict(client),
                row=asdict(row),
            )
        return RewardResult.from_json(value)
