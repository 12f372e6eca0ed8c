"""Episodes in an environment, which answers the policy's turns and rewards them."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from kubealign.spec.workflows.environments import EnvironmentSpec, FirstObservation
from kubealign_services.data.errors import DataError
from kubealign_services.data.tokenization.message_turns import MessageTurns
from kubealign_services.environments.contract import EnvironmentFailed, Observation, StepResult
from kubealign_services.roles.rollout.workflow.contract import WorkflowFailed
from kubealign_services.roles.rollout.workflow.episode import Episode

#: Column of a row with the seed of its environment.
SEED_COLUMN = "seed"


class Session(Protocol):
    """Environment of one episode."""

    @property
    def observation(self) -> Observation:
        """First observation."""

    async def step(self, action: str) -> StepResult:
        """Apply an action. Raises EnvironmentFailed."""


class Environments(Protocol):
    """Source of environments."""

    def open(self, seed: int, columns: Mapping[str, Any]) -> AbstractAsyncContextManager[Session]:
        """Open a session for an episode. Raises EnvironmentFailed."""


class EnvironmentWorkflow:
    """Alternates between turns of the policy and observations of the environment.

    Args:
        turns: Renderer of observations as chat messages; None: they are inserted as text.
    """

    def __init__(
        self, spec: EnvironmentSpec, environments: Environments, turns: MessageTurns | None = None
    ) -> None:
        self._spec, self._environments, self._turns = spec, environments, turns

    async def __call__(self, episode: Episode) -> None:
        wait = _Wait()
        try:
            async with asyncio.timeout(episode.seconds_left):
                await self._play(episode, wait)
        except TimeoutError:
            raise WorkflowFailed(
                "an episode did not end before the deadline of its prompt (rollout.groupTimeoutSeconds); it "
                f"waited for {wait.target}"
            ) from None
        except (EnvironmentFailed, DataError) as error:
            raise WorkflowFailed(str(error)) from error

    async def _play(self, episode: Episode, wait: "_Wait") -> None:
        spec = self._spec
        wait.target = "the first observation of its environment"
        async with self._environments.open(_environment_seed(episode), episode.columns) as session:
            self._begin(episode, session.observation)
            for turn_number in range(1, spec.max_turns + 1):
                wait.target = f"turn {turn_number} of the policy"
                first_token = len(episode.transcript.tokens)
                turn = await episode.generate(stop=spec.stop, max_tokens=spec.max_turn_tokens)
                wait.target = f"the environment's answer to turn {turn_number}"
                result = await session.step(turn.text.removesuffix(turn.stop or ""))
                self._give_reward(episode, result)
                is_over = result.done or result.truncated or turn.truncated
                if is_over or turn_number == spec.max_turns:
                    return
                turn_tokens = episode.transcript.tokens[first_token:]
                if not self._insert(episode, turn_tokens, _as_observation(result.observation)):
                    return

    def _begin(self, episode: Episode, observation: Observation) -> None:
        """Insert the first observation, or check that the prompt has it. Raises WorkflowFailed."""
        if not observation:
            return
        if self._spec.first_observation is FirstObservation.INSERT:
            if not episode.put(self._render(observation)):
                raise WorkflowFailed(
                    "the first observation leaves no room for the policy: raise rollout.sampling.maxTokens"
                )
        elif (text := observation.plain_text().strip()) not in episode.prompt:
            raise WorkflowFailed(
                f"the row's prompt does not have the first observation {text[:200]!r} in it: write the rows "
                "with python -m kubealign_services.environments.rows, which stores the environment's seed in "
                f"the column {SEED_COLUMN}, or set firstObservation to Insert"
            )

    def _insert(self, episode: Episode, turn: Sequence[int], observation: Observation) -> bool:
        """Append an observation. Return False where it leaves no room for the policy."""
        if self._turns is None:
            return episode.put(self._render(observation))
        messages = observation.messages or [{"role": "user", "content": self._render(observation)}]
        return episode.append(self._turns.follow(turn, list(map(dict, messages))))

    def _render(self, observation: Observation) -> str:
        return self._spec.observation_template.replace("{observation}", observation.plain_text())

    def _give_reward(self, episode: Episode, result: StepResult) -> None:
        if self._spec.reward in episode.reward_names:
            episode.reward(result.reward, self._spec.reward, metrics=result.metrics)


class _Wait:
    """Event for which an episode waits."""

    target = "its environment"


def _environment_seed(episode: Episode) -> int:
    """Return the seed of the row; without one, the group's."""
    seed = episode.columns.get(SEED_COLUMN)
    return seed if isinstance(seed, int) and not isinstance(seed, bool) else episode.group_seed


def _as_observation(observation: Observation | str) -> Observation:
    return Observation(observation) if isinstance(observation, str) else observation
