"""Episodes of an agent, which calls the policy through the OpenAI API and returns the reward."""

import asyncio
from typing import Any, Protocol

from kubealign.agents.contract import AgentClient, AgentRow
from kubealign.spec.sections.rewards import DEFAULT_REWARD
from kubealign.spec.workflows.agents import AgentSpec
from kubealign_services.environments.contract import EnvironmentFailed
from kubealign_services.roles.rollout.agents.conversations import Conversations
from kubealign_services.roles.rollout.agents.server import AgentServer
from kubealign_services.roles.rollout.agents.session import AgentSession
from kubealign_services.roles.rollout.workflow.contract import WorkflowFailed
from kubealign_services.roles.rollout.workflow.episode import Episode
from kubealign_services.scoring.functions.results import RewardResult


class Agents(Protocol):
    """Agents that can be run, in processes of the worker or elsewhere."""

    @property
    def label(self) -> str:
        """Description of the agents for errors."""

    async def solve(self, client: AgentClient, row: AgentRow) -> RewardResult:
        """Run an agent and return its reward. Raises EnvironmentFailed."""


class AgentWorkflow:
    """Runs an agent for each response, with a session of its own.

    Args:
        max_sequences: Maximum number of sequences of a response.
    """

    def __init__(
        self,
        spec: AgentSpec,
        server: AgentServer,
        agents: Agents,
        conversations: Conversations,
        max_sequences: int,
    ) -> None:
        self._spec, self._server, self._agents = spec, server, agents
        self._conversations, self._max_sequences = conversations, max_sequences

    async def __call__(self, episode: Episode) -> None:
        try:
            async with asyncio.timeout(episode.seconds_left):
                result = await self._solve(episode)
        except TimeoutError:
            raise WorkflowFailed(
                f"{self._agents.label} did not end before the deadline of its prompt "
                "(rollout.groupTimeoutSeconds)"
            ) from None
        except EnvironmentFailed as error:
            raise WorkflowFailed(str(error)) from error
        sequences = episode.sequences
        if not sequences:
            raise WorkflowFailed(f"{self._agents.label} ended without a completion of the policy")
        if result.reward is not None and DEFAULT_REWARD in episode.reward_names:
            sequences[-1].reward(result.reward, metrics=result.metrics, explanation=result.explanation)

    async def _solve(self, episode: Episode) -> RewardResult:
        """Run the agent until it ends, or until its session fails, and return its reward."""
        row = AgentRow(episode.prompt, episode.columns, episode.group_seed)
        session = AgentSession(episode, self._conversations, self._max_sequences, self._spec.other_sampling)
        async with self._server.open(session) as client:
            agent = asyncio.create_task(self._agents.solve(client, row))
            try:
                ends: set[asyncio.Future[Any]] = {agent, session.failure}
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                if session.failure.done():
                    session.failure.result()
                return await agent
            finally:
                agent.cancel()
                await asyncio.gather(agent, return_exceptions=True)
