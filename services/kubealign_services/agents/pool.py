"""Pool of processes that run the agents of a rollout worker."""

import itertools
from dataclasses import asdict
from typing import Any

from kubealign.agents.contract import AgentClient, AgentRow
from kubealign.spec.workflows.agents import AgentSpec
from kubealign_services.environments.child_processes import ChildProcesses
from kubealign_services.environments.environment_process import EnvironmentProcess
from kubealign_services.scoring.functions.function_process import function_target
from kubealign_services.scoring.functions.results import RewardResult

_MODULE = "kubealign_services.agents.child_main"


def _agent_target(spec: AgentSpec) -> tuple[dict[str, Any], str]:
    """Return (first line to the child process, description for errors) of an agent."""
    if spec.verifiers is not None:
        document = spec.verifiers.model_dump(by_alias=True, exclude_none=True, mode="json")
        return {"verifiers": document}, f"verifiers {spec.verifiers.taskset}"
    assert spec.function is not None
    return function_target(spec.function)


class AgentPool(ChildProcesses):
    """Runs agents, each in the process with the fewest.

    Use as an async context manager. Processes that are lost, or in which an agent exceeded its time limit,
    are replaced when the next agent begins.
    """

    def __init__(self, spec: AgentSpec) -> None:
        target, description = _agent_target(spec)
        super().__init__(
            lambda: EnvironmentProcess.start_program(_MODULE, self.label, target),
            spec.processes,
            spec.concurrency,
            "the agents' processes",
        )
        #: Description of the agent for errors.
        self.label = f"agent {description}"
        self._timeout = spec.timeout_seconds
        self._identities = itertools.count(1)

    async def solve(self, client: AgentClient, row: AgentRow) -> RewardResult:
        """Run an agent once fewer than processes * concurrency run, and return its reward.

        Raises:
            EnvironmentFailed: The agent raised an error, returned no reward, exceeded timeoutSeconds or lost
                its process.
        """
        async with self.reserve() as process:
            value = await process.call(
                "solve",
                self._timeout,
                "rollout.workflow.agent.timeoutSeconds",
                next(self._identities),
                client=asdict(client),
                row=asdict(row),
            )
        return RewardResult.from_json(value)
